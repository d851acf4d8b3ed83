! hotlease: for callers of functions, from Fortran 2018, over hotlease.h. Each compiler has its own format of modules, so
! compile this file with the program, and link with -lhotlease. In CMake, link with hotlease::fortran.
!
!   type(hotlease_code) :: code
!   type(hotlease_invoker) :: invoker
!   type(hotlease_function) :: task
!
!   call code%open("libtask.so")                               ! the functions
!   call invoker%lease(code, hotlease_options(slots=2))        ! a worker with two slots, the library loaded
!   call task%find(invoker, "task")
!   call task%invoke(in, out)                                  ! variables of any type and rank
!   call invoker%release()
!   call task%free(); call invoker%free(); call code%free()    ! in any order
!
! Conventions
!
!  1. The description of each procedure in hotlease.h also applies here. Handles are freed once, by %free; a copy of a
!     handle is the same object.
!  2. Procedures that can fail have `error` as their last argument. Without it, a failure prints the message and stops the
!     program, as `allocate` without `stat` does. With it, error%status is HOTLEASE_OK, or the kind of the failure.
!  3. Values are variables of any type and rank without pointers or allocatable components. The compiler copies a section
!     of an array, as for every contiguous argument. Sizes of results are in bytes. Text is an array of single
!     characters, except for %invoke_text.
!  4. Trailing blanks are removed from names and paths.
!  5. Other procedures of hotlease.h can be called through interfaces of your own, with the component `handle`.
module hotlease
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: compiler_version
  implicit none
  private
  public :: hotlease_code, hotlease_invoker, hotlease_function, hotlease_invocation, hotlease_buffer, hotlease_range
  public :: hotlease_pipeline, hotlease_model, hotlease_error, hotlease_options, hotlease_usage, hotlease_plan
  public :: hotlease_version

  ! Kinds of failure, which hotlease.h explains.
  enum, bind(C)
    enumerator :: HOTLEASE_OK = 0, HOTLEASE_FUNCTION_FAILED = 1, HOTLEASE_OUTPUT_TOO_LARGE = 2
    enumerator :: HOTLEASE_DEADLINE_EXCEEDED = 3, HOTLEASE_BUSY = 4, HOTLEASE_INVALID_ARGUMENT = 5
    enumerator :: HOTLEASE_CANCELLED = 6, HOTLEASE_OPERATOR_FAILED = 7, HOTLEASE_CODE_REJECTED = 20
    enumerator :: HOTLEASE_UNKNOWN_FUNCTION = 21, HOTLEASE_WORKER_DIED = 40, HOTLEASE_OUTCOME_UNKNOWN = 41
    enumerator :: HOTLEASE_LEASE_ENDED = 60, HOTLEASE_MEMORY_LOST = 61
    enumerator :: HOTLEASE_MEMBER_LOST = 70, HOTLEASE_MEMBER_LEFT = 71
    enumerator :: HOTLEASE_OUTCAST = 72, HOTLEASE_MISMATCH = 73, HOTLEASE_NOT_TOGETHER = 74
    enumerator :: HOTLEASE_NOT_READ = 75, HOTLEASE_FINISHED = 76, HOTLEASE_NO_CAPACITY = 80
    enumerator :: HOTLEASE_REFUSED = 81, HOTLEASE_UNAVAILABLE = 82, HOTLEASE_PROTOCOL = 83
    enumerator :: HOTLEASE_LOCAL = 84, HOTLEASE_INTERNAL = 100
    enumerator :: HOTLEASE_RAN_NO = 0, HOTLEASE_RAN_YES = 1, HOTLEASE_RAN_UNKNOWN = 2
    enumerator :: HOTLEASE_POLLING_ADAPTIVE = 0, HOTLEASE_POLLING_HOT = 1, HOTLEASE_POLLING_WARM = 2
    enumerator :: HOTLEASE_COMPLETION_ADAPTIVE = 0, HOTLEASE_COMPLETION_SPIN = 1, HOTLEASE_COMPLETION_SLEEP = 2
  end enum
  public :: HOTLEASE_OK, HOTLEASE_FUNCTION_FAILED, HOTLEASE_OUTPUT_TOO_LARGE, HOTLEASE_DEADLINE_EXCEEDED
  public :: HOTLEASE_BUSY, HOTLEASE_INVALID_ARGUMENT, HOTLEASE_CANCELLED, HOTLEASE_OPERATOR_FAILED
  public :: HOTLEASE_CODE_REJECTED, HOTLEASE_UNKNOWN_FUNCTION, HOTLEASE_WORKER_DIED, HOTLEASE_OUTCOME_UNKNOWN
  public :: HOTLEASE_LEASE_ENDED, HOTLEASE_MEMORY_LOST, HOTLEASE_MEMBER_LOST, HOTLEASE_MEMBER_LEFT
  public :: HOTLEASE_OUTCAST, HOTLEASE_MISMATCH
  public :: HOTLEASE_NOT_TOGETHER, HOTLEASE_NOT_READ, HOTLEASE_FINISHED, HOTLEASE_NO_CAPACITY, HOTLEASE_REFUSED
  public :: HOTLEASE_UNAVAILABLE, HOTLEASE_PROTOCOL, HOTLEASE_LOCAL, HOTLEASE_INTERNAL
  public :: HOTLEASE_RAN_NO, HOTLEASE_RAN_YES, HOTLEASE_RAN_UNKNOWN
  public :: HOTLEASE_POLLING_ADAPTIVE, HOTLEASE_POLLING_HOT, HOTLEASE_POLLING_WARM
  public :: HOTLEASE_COMPLETION_ADAPTIVE, HOTLEASE_COMPLETION_SPIN, HOTLEASE_COMPLETION_SLEEP

  ! Outcome of a procedure that can fail.
  type :: hotlease_error
    integer(c_int) :: status = HOTLEASE_OK
    integer(c_int) :: ran = HOTLEASE_RAN_NO      ! whether the function of the failed call ran
    logical :: billed = .false., retryable = .false.
    integer(c_int32_t) :: code = 0               ! HOTLEASE_FUNCTION_FAILED: the function's own number
    integer(c_int64_t) :: needed = 0             ! HOTLEASE_OUTPUT_TOO_LARGE: bytes that the result needs
    character(:), allocatable :: message         ! what failed, where, why, and what to do next
  end type

  ! Options of a lease: the options of hotlease_options in hotlease.h, with the same defaults.
  type :: hotlease_options
    integer(c_int32_t) :: workers = 0, slots = 0, polling = 0, completion = 0
    integer(c_int64_t) :: hot_budget_us = 0, ttl_ms = 0, memory_bytes = 0, timeout_us = 0
    integer(c_int32_t) :: depth = 0, request_bytes = 0, reply_bytes = 0, retries = 0, no_new_lease = 0, shared = 0
    character(:), allocatable :: label, runtime_dir, manager, identity, transport
    integer(c_int64_t) :: registered_bytes = 0
    integer(c_int32_t) :: registered_buffers = 0, no_core_wait = 0, spread_least = 0, direct = 0
    integer(c_int64_t) :: move_within_ms = 0, patience_ms = 0
    integer(c_int32_t) :: gpus = 0, network = 0
    character(:), allocatable :: sandbox, mounts, storage, state
    integer(c_int32_t) :: no_renewal = 0
    character(:), allocatable :: variables
  end type

  ! Usage of a lease so far, in total.
  type, bind(C) :: hotlease_usage
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: allocated_ns = 0 ! number of slots times the time for which they were held
    integer(c_int64_t) :: hot_ns = 0       ! time in which slots polled
    integer(c_int64_t) :: compute_ns = 0   ! time in functions
    integer(c_int64_t) :: invocations = 0  ! functions run
  end type

  ! Division of a number of equal tasks.
  type, bind(C) :: hotlease_plan
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: local = 0        ! tasks to run here: while they run, the results of sent tasks arrive
    integer(c_int64_t) :: remote = 0       ! tasks to send first
    integer(c_int64_t) :: predicted_ns = 0 ! time until all tasks are done
  end type

  ! A range of a buffer; the buffer's %range makes it.
  type, bind(C) :: hotlease_range
    type(c_ptr) :: buffer = c_null_ptr
    integer(c_size_t) :: offset = 0
    integer(c_size_t) :: size = 0
  end type

  ! A function library.
  type :: hotlease_code
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: open => code_open
    procedure :: function_count => code_function_count
    procedure :: function_name => code_function_name
    procedure :: free => code_free
  end type

  ! A lease, and the connection to its workers.
  type :: hotlease_invoker
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: lease => invoker_lease
    procedure :: slots => invoker_slots
    procedure :: transport => invoker_transport
    procedure :: release => invoker_release
    procedure :: free => invoker_free
  end type

  ! A function on the workers of a lease.
  type :: hotlease_function
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: find => function_find
    procedure :: on_slot => function_on_slot
    procedure :: output_bytes => function_output_bytes
    procedure :: invoke => function_invoke
    procedure :: invoke_text => function_invoke_text
    procedure :: submit => function_submit
    procedure :: try_submit => function_try_submit
    procedure :: map => function_map
    procedure :: invoke_buffers => function_invoke_buffers
    procedure :: submit_buffers => function_submit_buffers
    procedure :: free => function_free
  end type

  ! A call that was submitted.
  type :: hotlease_invocation
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: is_done => invocation_is_done
    procedure :: wait_for => invocation_wait_for
    procedure :: wait => invocation_wait
    procedure :: wait_in_place => invocation_wait_in_place
    procedure :: free => invocation_free
  end type

  ! Memory that client and workers share.
  type :: hotlease_buffer
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: create => buffer_create
    procedure :: address => buffer_address
    procedure :: size => buffer_size
    procedure :: range => buffer_range
    procedure :: free => buffer_free
  end type

  ! Many small calls in flight on one slot.
  type :: hotlease_pipeline
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: open => pipeline_open
    procedure :: size => pipeline_size
    procedure :: is_full => pipeline_is_full
    procedure :: push => pipeline_push
    procedure :: pop => pipeline_pop
    procedure :: free => pipeline_free
  end type

  ! Cost of calls, by which tasks are divided.
  type :: hotlease_model
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: learn => model_learn
    procedure :: plan => model_plan
    procedure :: free => model_free
  end type

  include "interfaces.inc"

contains

  ! ---- Code --------------------------------------------------------------------------------------------------------

  ! Reads a function library, and the list of its functions, without running any of its code.
  subroutine code_open(self, path, error)
    class(hotlease_code), intent(inout) :: self
    character(*), intent(in) :: path
    type(hotlease_error), intent(out), optional :: error
    type(c_ptr) :: failure
    call self%free()
    call settle(c_code_open(trim(path)//c_null_char, self%handle, failure), failure, error)
  end subroutine

  integer(c_size_t) function code_function_count(self)
    class(hotlease_code), intent(in) :: self
    code_function_count = c_code_function_count(self%handle)
  end function

  ! Name of the function with this index from 1, sorted by name; "" if there is none.
  function code_function_name(self, index) result(name)
    class(hotlease_code), intent(in) :: self
    integer, intent(in) :: index
    character(:), allocatable :: name
    name = text_at(c_code_function_name(self%handle, int(index, c_size_t) - 1))
  end function

  subroutine code_free(self)
    class(hotlease_code), intent(inout) :: self
    call c_code_free(self%handle)
    self%handle = c_null_ptr
  end subroutine

  ! ---- Leases ------------------------------------------------------------------------------------------------------

  ! Leases workers and loads `code` into them; returns when the workers are ready.
  subroutine invoker_lease(self, code, options, error)
    class(hotlease_invoker), intent(inout) :: self
    type(hotlease_code), intent(in) :: code
    type(hotlease_options), intent(in), optional :: options
    type(hotlease_error), intent(out), optional :: error
    character(:), allocatable, target :: label, runtime_dir, manager, identity, transport, sandbox, mounts, storage, state
    character(:), allocatable, target :: variables
    type(hotlease_options) :: o
    type(c_options) :: c
    type(c_ptr) :: failure
    if (present(options)) o = options
    c = c_options(c_sizeof(c), o%workers, o%slots, o%polling, o%completion, o%hot_budget_us, o%ttl_ms, &
      o%memory_bytes, o%timeout_us, o%depth, o%request_bytes, o%reply_bytes, o%retries, o%no_new_lease, o%shared, &
      c_text(o%label, label), c_text(o%runtime_dir, runtime_dir), c_text(o%manager, manager), &
      c_text(o%identity, identity), c_text(o%transport, transport), o%registered_bytes, o%registered_buffers, &
      o%no_core_wait, o%spread_least, o%direct, o%move_within_ms, o%patience_ms, o%gpus, o%network, &
      c_text(o%sandbox, sandbox), c_text(o%mounts, mounts), c_text(o%storage, storage), c_text(o%state, state), &
      o%no_renewal, c_text(o%variables, variables))
    call self%free()
    call settle(c_allocate(code%handle, c, self%handle, failure), failure, error)
  end subroutine

  ! Number of slots of all workers together.
  integer(c_int32_t) function invoker_slots(self)
    class(hotlease_invoker), intent(in) :: self
    invoker_slots = c_invoker_slots(self%handle)
  end function

  ! Transport by which the first worker was reached: "shm", or a provider of libfabric.
  function invoker_transport(self) result(transport)
    class(hotlease_invoker), intent(in) :: self
    character(:), allocatable :: transport
    transport = text_at(c_invoker_transport(self%handle))
  end function

  ! Ends the lease and its workers.
  subroutine invoker_release(self, usage, error)
    class(hotlease_invoker), intent(in) :: self
    type(hotlease_usage), intent(out), optional :: usage
    type(hotlease_error), intent(out), optional :: error
    type(hotlease_usage), target :: used
    type(c_ptr) :: failure
    used%struct_size = c_sizeof(used)
    call settle(c_deallocate(self%handle, c_loc(used), failure), failure, error)
    if (present(usage)) usage = used
  end subroutine

  ! Also ends the lease, if %release did not.
  subroutine invoker_free(self)
    class(hotlease_invoker), intent(inout) :: self
    call c_invoker_free(self%handle)
    self%handle = c_null_ptr
  end subroutine

  include "calls.inc"

  ! ---- Buffers -----------------------------------------------------------------------------------------------------

  ! Makes memory of `size` bytes, zeroed.
  subroutine buffer_create(self, invoker, size, error)
    class(hotlease_buffer), intent(inout) :: self
    type(hotlease_invoker), intent(in) :: invoker
    integer(c_size_t), intent(in) :: size
    type(hotlease_error), intent(out), optional :: error
    type(c_ptr) :: failure
    call self%free()
    call settle(c_buffer_create(invoker%handle, size, self%handle, failure), failure, error)
  end subroutine

  ! Address of the buffer's first byte, for c_f_pointer.
  type(c_ptr) function buffer_address(self)
    class(hotlease_buffer), intent(in) :: self
    buffer_address = c_buffer_data(self%handle)
  end function

  integer(c_size_t) function buffer_size(self)
    class(hotlease_buffer), intent(in) :: self
    buffer_size = c_buffer_size(self%handle)
  end function

  ! Range of `size` bytes (default: all) from byte `offset` (default: 0) on.
  type(hotlease_range) function buffer_range(self, offset, size)
    class(hotlease_buffer), intent(in) :: self
    integer(c_size_t), intent(in), optional :: offset, size
    buffer_range = hotlease_range(self%handle, 0, self%size())
    if (present(offset)) buffer_range = hotlease_range(self%handle, offset, self%size() - offset)
    if (present(size)) buffer_range%size = size
  end function

  ! Frees the buffer. Invocations that use it may still be running: its memory is released when they have ended.
  subroutine buffer_free(self)
    class(hotlease_buffer), intent(inout) :: self
    call c_buffer_free(self%handle)
    self%handle = c_null_ptr
  end subroutine

  ! ---- How many tasks to send --------------------------------------------------------------------------------------

  ! Learns the cost of a function's calls on inputs like `in`, by making some calls.
  subroutine model_learn(self, task, in, error)
    class(hotlease_model), intent(inout) :: self
    type(hotlease_function), intent(in) :: task
    type(*), intent(in), target, contiguous :: in(..)
    type(hotlease_error), intent(out), optional :: error
    type(c_ptr) :: failure
    call self%free()
    call settle(c_model_learn(task%handle, address(in), bytes(in), self%handle, failure), failure, error)
  end subroutine

  ! Computes how many of `tasks` to run here, where a task takes `local_ns`, and how many to send.
  subroutine model_plan(self, tasks, local_ns, plan, error)
    class(hotlease_model), intent(in) :: self
    integer(c_int64_t), intent(in) :: tasks, local_ns
    type(hotlease_plan), intent(out) :: plan
    type(hotlease_error), intent(out), optional :: error
    type(c_ptr) :: failure
    plan%struct_size = c_sizeof(plan)
    call settle(c_model_plan(self%handle, tasks, local_ns, plan, failure), failure, error)
  end subroutine

  subroutine model_free(self)
    class(hotlease_model), intent(inout) :: self
    call c_model_free(self%handle)
    self%handle = c_null_ptr
  end subroutine

  ! ---- Version -----------------------------------------------------------------------------------------------------

  ! Version of the library in use, for instance "0.1.0".
  function hotlease_version() result(version)
    character(:), allocatable :: version
    version = text_at(c_version())
  end function

  ! ---- Errors, memory and text -------------------------------------------------------------------------------------

  ! Reports a failure to the caller, or stops the program; frees the C form of the error.
  subroutine settle(status, failure, error)
    integer(c_int), intent(in) :: status
    type(c_ptr), intent(in) :: failure
    type(hotlease_error), intent(out), optional :: error
    type(hotlease_error) :: found
    if (status == HOTLEASE_OK) return
    ! Components are set one by one, because gfortran 12 cuts the message in a structure constructor.
    found%status = status
    found%ran = c_error_ran(failure)
    found%billed = c_error_billed(failure) /= 0
    found%retryable = c_error_retryable(failure) /= 0
    found%code = c_error_code(failure)
    found%needed = c_error_needed(failure)
    found%message = text_at(c_error_message(failure))
    call c_error_free(failure)
    if (.not. present(error)) error stop "hotlease: "//found%message
    error = found
  end subroutine

  ! Reports a mistake in arguments that the C library cannot detect.
  subroutine refuse(message, error)
    character(*), intent(in) :: message
    type(hotlease_error), intent(out), optional :: error
    if (.not. present(error)) error stop "hotlease: "//message
    error%status = HOTLEASE_INVALID_ARGUMENT
    error%message = message
  end subroutine

  ! Size of a variable in bytes, read from the descriptor that the compiler makes for C.
  integer(c_size_t) function bytes(x)
    type(*), intent(in), target, contiguous :: x(..)
    procedure(c_element_bytes), pointer :: element
    call c_f_procpointer(c_funloc(element_bytes), element)
    bytes = element(x) * size(x, kind=c_size_t)
  end function

  function element_bytes(x) bind(C, name="hotlease_fortran_element_bytes") result(bytes)
    type(c_descriptor), intent(in) :: x
    integer(c_size_t) :: bytes
    logical, parameter :: is_gfortran = index(compiler_version(), "GCC") == 1
    ! gfortran 12 does not pass the lengths of literals and substrings, so too many or too few bytes would be sent.
    if (is_gfortran .and. iand(int(x%type), 255) == CFI_TYPE_CHARACTER .and. (x%rank == 0 .or. x%elem_len /= 1)) &
      error stop "hotlease: pass text by invoke_text, or as an array of single characters"
    bytes = x%elem_len
  end function

  type(c_ptr) function address(x)
    type(*), intent(in), target, contiguous :: x(..)
    address = c_loc(x)
  end function

  type(c_ptr) function moved(from, by)
    type(c_ptr), intent(in) :: from
    integer(c_size_t), intent(in) :: by
    moved = transfer(transfer(from, 0_c_intptr_t) + by, c_null_ptr)
  end function

  ! Address of a text as a C string in `storage`; null if the text was not given.
  type(c_ptr) function c_text(text, storage)
    character(:), allocatable, intent(in) :: text
    character(:), allocatable, target, intent(inout) :: storage
    c_text = c_null_ptr
    if (.not. allocated(text)) return
    storage = trim(text)//c_null_char
    c_text = address(storage)
  end function

  function text_at(place) result(text)
    type(c_ptr), intent(in) :: place
    character(:), allocatable :: text
    character(c_char), pointer :: letters(:)
    integer(c_size_t) :: i
    text = ""
    if (.not. c_associated(place)) return
    call c_f_pointer(place, letters, [c_strlen(place)])
    text = repeat(" ", size(letters))
    do i = 1, size(letters, kind=c_size_t)
      text(i:i) = letters(i)
    end do
  end function
end module
