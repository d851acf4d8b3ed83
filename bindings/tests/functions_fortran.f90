! Functions in Fortran for the tests of the bindings.
module test_functions
  use, intrinsic :: iso_c_binding
  use hotlease_functions
  implicit none
  integer(c_int32_t), bind(C) :: hotlease_context_described = 1, hotlease_context_refused = 1
  integer(c_int32_t), bind(C) :: hotlease_context_endless = 1, hotlease_idempotent_endless = 1
  integer(c_int32_t), bind(C) :: hotlease_context_visits = 1
  ! Calls of `visits`, also those of earlier workers of its state.
  integer(c_int64_t), target :: visited = 0
contains

  ! Adds two matrices of 2 by 3.
  function add_matrices(in, size, out) bind(C) result(written)
    integer(c_int32_t), value :: size
    real(c_double), intent(in) :: in(2, 3, 2)
    real(c_double), intent(out) :: out(2, 3)
    integer(c_int32_t) :: written
    out = in(:, :, 1) + in(:, :, 2)
    written = size / 2
  end function

  ! Checks that the context is as function.h promises, and gives the tenant.
  function described(context, in, size, out, capacity, produced) bind(C) result(code)
    type(hotlease_context), intent(in) :: context
    integer(c_int64_t), value :: size, capacity
    character(c_char), intent(in) :: in(size)
    character(c_char), intent(out) :: out(capacity)
    integer(c_int64_t), intent(inout) :: produced
    integer(c_int32_t) :: code
    character(c_char), pointer :: scratch(:)
    character(:), allocatable :: tenant
    integer :: i
    tenant = hotlease_tenant(context)
    code = 0
    if (size /= 2 .or. in(1) /= "i" .or. in(2) /= "n") code = hotlease_fail(1, "input", out, capacity, produced)
    if (context%struct_size /= c_sizeof(context)) code = hotlease_fail(2, "struct_size", out, capacity, produced)
    if (context%slots < 1 .or. context%slot < 0 .or. context%slot >= context%slots .or. context%reserved /= 0) &
      code = hotlease_fail(3, "slot", out, capacity, produced)
    if (context%deadline_ns /= 0) code = hotlease_fail(4, "deadline", out, capacity, produced)
    if (hotlease_cancelled(context)) code = hotlease_fail(6, "cancelled", out, capacity, produced)
    if (context%scratch_bytes /= 65536 .or. c_associated(context%communicator) .or. .not. c_associated(context%state)) &
      code = hotlease_fail(5, "scratch_bytes", out, capacity, produced)
    if (code /= 0) return
    call c_f_pointer(context%scratch, scratch, [context%scratch_bytes])
    scratch = "x"
    do i = 1, len(tenant)
      out(i) = tenant(i:i)
    end do
    produced = len(tenant)
  end function

  ! Fails, with a message longer than the caller's room if the caller has less.
  function refused(context, in, size, out, capacity, produced) bind(C) result(code)
    type(hotlease_context), intent(in) :: context
    integer(c_int64_t), value :: size, capacity
    character(c_char), intent(in) :: in(size)
    character(c_char), intent(out) :: out(capacity)
    integer(c_int64_t), intent(inout) :: produced
    integer(c_int32_t) :: code
    code = hotlease_fail(22, merge("no input", "as asked", size == 0), out, capacity, produced)
    if (size > 1) code = code + ichar(in(1)) + context%reserved
  end function

  ! Runs until it is cancelled.
  function endless(context, in, size, out, capacity, produced) bind(C) result(code)
    type(hotlease_context), intent(in) :: context
    integer(c_int64_t), value :: size, capacity
    character(c_char), intent(in) :: in(size)
    character(c_char), intent(out) :: out(capacity)
    integer(c_int64_t), intent(inout) :: produced
    integer(c_int32_t) :: code
    do while (.not. hotlease_cancelled(context))
    end do
    code = hotlease_fail(23, "cancelled", out, capacity, produced)
    if (size > 0) produced = min(produced, int(ichar(in(1)), c_int64_t))
  end function

  function visits(context, in, size, out, capacity, produced) bind(C) result(code)
    type(hotlease_context), intent(in) :: context
    integer(c_int64_t), value :: size, capacity
    integer(c_int64_t), intent(in) :: in(size / 8)
    integer(c_int64_t), intent(out) :: out
    integer(c_int64_t), intent(inout) :: produced
    integer(c_int32_t) :: code
    code = merge(0, 1, size == 0 .and. capacity >= 8 .and. context%slots == 1)
    visited = visited + 1 + sum(in)
    out = visited
    produced = 8
  end function

  function save_visits(context, state) bind(C, name="hotlease_state_save_visits_in_fortran") result(code)
    type(hotlease_context), intent(in) :: context
    type(hotlease_state), intent(inout) :: state
    integer(c_int32_t) :: code
    code = hotlease_state_write(state, c_loc(visited), c_sizeof(visited))
    if (context%slots /= 1) code = 1
  end function

  function restore_visits(context, state) bind(C, name="hotlease_state_restore_visits_in_fortran") result(code)
    type(hotlease_context), intent(in) :: context
    type(hotlease_state), intent(inout) :: state
    integer(c_int32_t) :: code
    code = hotlease_state_read(state, c_loc(visited), c_sizeof(visited))
    if (context%slots /= 1 .or. state%size /= 8) code = 1
  end function
end module
