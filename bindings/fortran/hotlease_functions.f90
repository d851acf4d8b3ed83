! hotlease_functions: for authors of functions, in Fortran 2018, over function.h; nothing to link with. Compile this file
! with the function library, and link the library with -Wl,--version-script=exports.map, so that it exports only your
! functions. In CMake, hotlease_add_functions() does both.
!
! A plain function does not need this module. It is a procedure with bind(C); its arguments are the input, the input's
! size in bytes, and the output. It returns the number of bytes that it wrote.
!
!   function total(in, size, out) bind(C) result(written)
!     integer(c_int32_t), value :: size
!     real(c_double), intent(in) :: in(size / 8)
!     real(c_double), intent(out) :: out
!     integer(c_int32_t) :: written
!     out = sum(in)
!     written = 8
!   end function
!
! A function of the context interface has 64-bit sizes, the capacity of the output, and errors. By a module variable
! `hotlease_context_NAME`, client and worker recognise that function NAME has this interface. A variable
! `hotlease_idempotent_NAME` declares that the function may run again if its worker died.
!
!   integer(c_int32_t), bind(C), public :: hotlease_context_doubled = 1
!   ...
!   function doubled(context, in, size, out, capacity, produced) bind(C) result(code)
!     type(hotlease_context), intent(in) :: context
!     integer(c_int64_t), value :: size, capacity
!     real(c_double), intent(in) :: in(size / 8)
!     real(c_double), intent(out) :: out(capacity / 8)
!     integer(c_int64_t), intent(out) :: produced
!     integer(c_int32_t) :: code
!
! The rules are those of function.h. A `stop` ends the worker, and so does an error of the run-time library, for instance
! a failed allocation without stat=. All slots of the worker share module variables: a library with `save` data needs
! workers with one slot, or must keep the data in *context%state.
module hotlease_functions
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: hotlease_context, hotlease_state, hotlease_tenant, hotlease_cancelled, hotlease_fail
  public :: hotlease_state_read, hotlease_state_write

  ! Context that the worker passes to a function of the context interface; valid during the call.
  type, bind(C) :: hotlease_context
    integer(c_int32_t) :: struct_size
    integer(c_int32_t) :: slot          ! number of this slot, from 0
    integer(c_int32_t) :: slots         ! slots of the worker
    integer(c_int32_t) :: reserved
    type(c_ptr) :: tenant               ! see hotlease_tenant
    integer(c_int64_t) :: deadline_ns   ! nanoseconds of CLOCK_MONOTONIC; 0: none
    type(c_ptr) :: cancelled            ! see hotlease_cancelled
    type(c_ptr) :: state                ! address of this slot's type(c_ptr), which is null at first, kept between calls
    type(c_ptr) :: scratch              ! working memory of the slot, aligned to 64 bytes
    integer(c_int64_t) :: scratch_bytes
    type(c_ptr) :: communicator         ! used by gang.h, for functions of a gang
  end type

  ! Second argument of the functions hotlease_state_save_NAME and hotlease_state_restore_NAME: see function.h.
  type, bind(C) :: hotlease_state
    integer(c_int32_t) :: struct_size
    integer(c_int32_t) :: reserved
    integer(c_int64_t) :: size          ! total number of bytes to restore
    type(c_funptr) :: read
    type(c_funptr) :: write
    type(c_funptr) :: fail
  end type

  abstract interface
    function c_transfer(state, place, size) bind(C) result(code)
      import
      type(hotlease_state), intent(inout) :: state
      type(c_ptr), value :: place
      integer(c_int64_t), value :: size
      integer(c_int32_t) :: code
    end function
  end interface

contains

  ! Tenant that pays for the lease, for instance "uid:1000".
  function hotlease_tenant(context) result(tenant)
    type(hotlease_context), intent(in) :: context
    character(:), allocatable :: tenant
    character(c_char), pointer :: letters(:)
    integer :: length
    call c_f_pointer(context%tenant, letters, [4096])
    tenant = ""
    do length = 1, 4096
      if (letters(length) == c_null_char) exit
      tenant = tenant//letters(length)
    end do
  end function

  ! Whether the function should give up because its deadline has passed. It is a single load.
  logical function hotlease_cancelled(context)
    type(hotlease_context), intent(in) :: context
    integer(c_int32_t), pointer, volatile :: flag
    call c_f_pointer(context%cancelled, flag)
    hotlease_cancelled = flag /= 0
  end function

  ! Ends a function of the context interface with the function's own error: `code = hotlease_fail(22, "no input", out,
  ! capacity, produced)`. `number` must not be 0. A message longer than the capacity is cut.
  integer(c_int32_t) function hotlease_fail(number, message, out, capacity, produced)
    integer, intent(in) :: number
    character(*), intent(in) :: message
    type(*), intent(inout), target, contiguous :: out(..)
    integer(c_int64_t), intent(in) :: capacity
    integer(c_int64_t), intent(out) :: produced
    character(c_char), pointer :: letters(:)
    integer :: i
    produced = min(len(message, c_int64_t), capacity)
    call c_f_pointer(c_loc(out), letters, [produced])
    do i = 1, int(produced)
      letters(i) = message(i:i)
    end do
    hotlease_fail = int(number, c_int32_t)
  end function

  ! In the function that restores: reads the next `size` bytes of the state into `place`. Returns 0, or an error number
  ! that the function has to return.
  integer(c_int32_t) function hotlease_state_read(state, place, size)
    type(hotlease_state), intent(inout) :: state
    type(c_ptr), intent(in) :: place
    integer(c_size_t), intent(in) :: size
    procedure(c_transfer), pointer :: read
    call c_f_procpointer(state%read, read)
    hotlease_state_read = read(state, place, int(size, c_int64_t))
  end function

  ! In the function that saves: writes the next `size` bytes of the state, which are at `place`. Returns 0, or an error
  ! number that the function has to return.
  integer(c_int32_t) function hotlease_state_write(state, place, size)
    type(hotlease_state), intent(inout) :: state
    type(c_ptr), intent(in) :: place
    integer(c_size_t), intent(in) :: size
    procedure(c_transfer), pointer :: write
    call c_f_procpointer(state%write, write)
    hotlease_state_write = write(state, place, int(size, c_int64_t))
  end function
end module
