! All of module hotlease, against a running platform: client_fortran libtest_functions.so libfortran_functions.so
module checks
  implicit none
  integer :: passed = 0, failed = 0
contains
  subroutine check(is_so, what)
    logical, intent(in) :: is_so
    character(*), intent(in) :: what
    if (is_so) then
      passed = passed + 1
    else
      failed = failed + 1
      print "(2a)", "    not so: ", what
    end if
  end subroutine
end module

program client_fortran
  use, intrinsic :: iso_c_binding
  use checks
  use hotlease
  implicit none
  type, bind(C) :: particle
    real(c_double) :: place(3)
    integer(c_int32_t) :: charge
  end type
  type(hotlease_code) :: code
  type(hotlease_invoker) :: invoker
  type(hotlease_function) :: echo, increment, fail, variable
  type(hotlease_error) :: error
  type(hotlease_usage) :: usage
  character(1000) :: library, functions
  character(64) :: value
  integer(c_size_t) :: value_size

  call get_command_argument(1, library)
  call get_command_argument(2, functions)
  call code%open(library)
  call check(code%function_count() == 9 .and. code%function_name(1) == "alignment", "the functions are listed")
  call check(code%function_name(10) == "" .and. code%function_name(0) == "", "no function beyond the last")
  call check(hotlease_version() == "0.1.0", "the version")
  call invoker%lease(code, hotlease_options(depth=63), error)
  call check(error%status == HOTLEASE_INVALID_ARGUMENT .and. index(error%message, "depth") > 0, "odd depths are refused")
  call invoker%lease(code, hotlease_options(transport="carrier pigeon"), error)
  call check(index(error%message, "no way to the worker") > 0, "text in options arrives")

  call invoker%lease(code, hotlease_options(variables="TEST_VARIABLE=from Fortran", patience_ms=20000))
  call variable%find(invoker, "variable")
  call variable%invoke_text("", value, value_size)
  call check(value(:value_size) == "from Fortran", "variables of a lease are there when its library is loaded")
  call variable%free()
  call invoker%release()

  call invoker%lease(code, hotlease_options(label="fortran   ", patience_ms=20000))
  call check(invoker%slots() == 1 .and. invoker%transport() == "shm", "a lease")
  call echo%find(invoker, "echo ")
  call increment%find(invoker, "increment")
  call fail%find(invoker, "fail")
  call values()
  call failures()
  call futures()
  call maps()
  call pipelines()
  call buffers()
  call plans()
  call echo%free()
  call increment%free()
  call fail%free()
  call invoker%release(usage)
  call check(usage%invocations > 200 .and. usage%allocated_ns > 0, "usage is reported")
  call invoker%free()
  call code%free()
  call in_fortran()
  print "(4x, i0, a, i0, a)", passed + failed, " checks, ", failed, " failed"
  if (failed > 0 .or. passed == 0) error stop 1, quiet=.true.
contains

  ! Variables of each kind of type and rank go there and come back.
  subroutine values()
    real(c_double) :: cube(2, 3, 4), back(2, 3, 4), section(2, 2)
    complex(c_float) :: z(2), z_back(2)
    character(7) :: text
    character :: letters(5), letters_back(5)
    character(:), allocatable :: long
    type(particle) :: particles(3), particles_back(3)
    integer(c_size_t) :: size
    integer :: i, nothing(0)
    cube = reshape([(real(i, c_double), i = 1, 24)], shape(cube))
    back = 0
    call echo%invoke(cube, back, size)
    call check(all(back == cube) .and. size == 192, "an array of rank 3")
    call echo%invoke(cube(1, :2, 1:3:2), section)
    call check(all(section == cube(1, :2, 1:3:2)), "a section that is not contiguous")
    back = 0
    call echo%invoke(cube(1, 1, :), back(2, 3, :))
    call check(all(back(2, 3, :) == cube(1, 1, :)) .and. count(back /= 0) == 4, "a section as output")
    z = [(1, 2), (3, 4)]
    call echo%invoke(z, z_back)
    call check(all(z == z_back), "complex numbers")
    particles = [(particle([1, 2, 3] * i, i), i = 1, 3)]
    call echo%invoke(particles, particles_back, size)
    call check(all(particles_back%charge == [1, 2, 3]) .and. size == 96, "derived types")
    text = "?"
    call echo%invoke_text("abc", text, size)
    call check(text == "abc" .and. size == 3, "a text, and a result that is shorter than its place")
    call echo%invoke_text(text(2:3), text(6:7), size)
    call check(text(6:7) == "bc" .and. size == 2, "a substring")
    letters = ["l", "e", "a", "s", "e"]
    call echo%invoke(letters, letters_back, size)
    call check(all(letters == letters_back) .and. size == 5, "an array of characters")
    long = repeat("x", 20000)
    call echo%invoke_text(repeat("y", 20000), long, size)
    call check(long == repeat("y", 20000) .and. size == 20000, "a long text of deferred length")
    call echo%invoke(nothing, nothing, size)
    call check(size == 0, "nothing")
  end subroutine

  subroutine failures()
    type(hotlease_function) :: task, on_slot
    character(20) :: message
    character :: letters(20)
    integer(c_size_t) :: size
    call task%find(invoker, "ekho", error=error)
    call check(error%status == HOTLEASE_UNKNOWN_FUNCTION .and. index(error%message, "echo") > 0, "an unknown name")
    call fail%invoke_text("no", message, size, error)
    call check(error%status == HOTLEASE_FUNCTION_FAILED .and. error%code == 7, "the function's own error")
    call check(error%ran == HOTLEASE_RAN_YES .and. error%billed .and. .not. error%retryable, "it ran, and is billed")
    call check(message(:size) == "as asked" .and. index(error%message, "as asked") > 0, "its message")
    call fail%invoke_text("ok", message, error=error)
    call check(error%status == HOTLEASE_OK .and. .not. allocated(error%message), "success clears the error")
    call echo%invoke_text("0123456789", message(:4), error=error)
    call check(error%status == HOTLEASE_OUTPUT_TOO_LARGE .and. error%needed == 10, "room is needed")
    call task%find(invoker, "wait_ms", timeout_us=50000_c_int64_t, output_bytes=512_c_int64_t, idempotent=.false.)
    call check(task%output_bytes() == 512, "options of a function")
    call task%invoke(10000_c_int32_t, letters, error=error)
    call check(error%status == HOTLEASE_DEADLINE_EXCEEDED, "a timeout")
    call echo%on_slot(1, on_slot)
    call on_slot%invoke_text("one", message)
    call check(message(:3) == "one", "the first slot")
    call echo%on_slot(2, task, error)
    call check(error%status == HOTLEASE_INVALID_ARGUMENT, "there is no second slot")
    call on_slot%free()
    call task%free()
    call task%invoke_text("a handle that is not there", message, error=error)
    call check(error%status == HOTLEASE_INVALID_ARGUMENT, "a null handle")
  end subroutine

  subroutine futures()
    type(hotlease_invocation) :: calls(200), slow
    type(hotlease_function) :: wait_ms
    integer(c_int32_t) :: n, out
    integer(c_size_t) :: size
    logical :: right, ended
    do n = 1, 200
      call increment%submit(n, calls(n))
    end do
    right = .true.
    do n = 200, 1, -1
      call calls(n)%wait(out, size)
      right = right .and. out == n + 1 .and. size == 4
    end do
    call check(right, "200 calls in flight")
    call wait_ms%find(invoker, "wait_ms")
    call wait_ms%try_submit(20_c_int32_t, slow, error)
    call check(error%status == HOTLEASE_OK, "a call is started")
    ended = slow%wait_for(10000000_c_int64_t)
    call check(ended .and. slow%is_done(), "and ends")
    call slow%wait_in_place(size)
    call check(size == 0, "without output")
    call slow%wait_in_place(size, error)
    call check(error%status == HOTLEASE_INVALID_ARGUMENT, "an invocation is waited for once")
    call fail%submit(["n", "o"], slow)
    call slow%wait(out, error=error)
    call check(error%status == HOTLEASE_FUNCTION_FAILED, "a failure of a submitted call")
    call increment%submit(1_c_int32_t, slow)
    call slow%free()
    call wait_ms%free()
  end subroutine

  subroutine maps()
    integer(c_int32_t) :: in(2, 100), out(2, 100), i
    integer(c_size_t) :: sizes(3)
    integer(c_int) :: statuses(3)
    character :: messages(8, 3)
    in = reshape([(i, i = 1, 200)], shape(in))
    out = 0
    call increment%map(in, out, 100)
    call check(all(out == in + 1), "a map over columns")
    call fail%map(["o", "k", "n", "o", "o", "k"], messages, 3, sizes, statuses, error)
    call check(error%status == HOTLEASE_FUNCTION_FAILED .and. error%code == 7, "a map with a failure")
    call check(all(statuses == [HOTLEASE_OK, HOTLEASE_FUNCTION_FAILED, HOTLEASE_OK]), "which call it was")
    call check(all(sizes == [0, 8, 0]) .and. all(messages(:2, 2) == ["a", "s"]), "and its message")
    call increment%map(in, out, 7, error=error)
    call check(error%status == HOTLEASE_INVALID_ARGUMENT .and. index(error%message, "multiple") > 0, "unequal parts")
    call increment%map(in, out, 0)
  end subroutine

  subroutine pipelines()
    type(hotlease_pipeline) :: pipeline
    integer(c_int32_t) :: n, out, popped
    logical :: right
    call pipeline%open(increment)
    right = .true.
    popped = 0
    n = 0
    do while (n < 300 .or. pipeline%size() > 0)
      if (n < 300 .and. .not. pipeline%is_full()) then
        n = n + 1
        call pipeline%push(n)
      else
        call pipeline%pop(out)
        popped = popped + 1
        right = right .and. out == popped + 1
      end if
    end do
    call check(right .and. popped == 300, "a pipeline answers in order")
    call pipeline%pop(out, error=error)
    call check(error%status == HOTLEASE_INVALID_ARGUMENT, "an empty pipeline")
    call pipeline%free()
  end subroutine

  subroutine buffers()
    type(hotlease_buffer) :: buffer
    type(hotlease_invocation) :: invocation
    integer(c_int32_t), pointer :: numbers(:, :)
    integer(c_size_t) :: size
    integer :: i
    call buffer%create(invoker, 8_c_size_t * 500000)
    call check(buffer%size() == 4000000, "the size of a buffer")
    call c_f_pointer(buffer%address(), numbers, [500000, 2])
    call check(all(numbers == 0), "a buffer is zeroed")
    numbers(:, 1) = [(i, i = 1, 500000)]
    call increment%invoke_buffers(buffer%range(size=2000000_c_size_t), buffer%range(2000000_c_size_t), size)
    call check(size == 2000000 .and. all(numbers(:, 2) == numbers(:, 1) + 1), "a call on a buffer")
    call increment%submit_buffers(buffer%range(size=4_c_size_t), buffer%range(4_c_size_t, 4_c_size_t), invocation)
    call invocation%wait_in_place(size)
    call check(size == 4 .and. numbers(2, 1) == 2, "a submitted call on a buffer")
    call increment%invoke_buffers(buffer%range(4000001_c_size_t, 1_c_size_t), buffer%range(), size, error)
    call check(error%status == HOTLEASE_INVALID_ARGUMENT, "a range outside the buffer")
    call buffer%free()
  end subroutine

  subroutine plans()
    type(hotlease_model) :: model
    type(hotlease_plan) :: plan
    call model%learn(increment, 1_c_int32_t)
    call model%plan(100_c_int64_t, 1_c_int64_t, plan)
    call check(plan%local == 100 .and. plan%remote == 0, "tasks that take no time are kept")
    call model%free()
    call model%learn(fail, ["n", "o"], error)
    call check(error%status == HOTLEASE_FUNCTION_FAILED, "a function that fails teaches nothing")
  end subroutine

  ! Functions in Fortran, also their state, which the last option names.
  subroutine in_fortran()
    type(hotlease_function) :: task
    real(c_double) :: matrices(2, 3, 2), sum(2, 3)
    character(100) :: text
    integer(c_size_t) :: size
    integer(c_int64_t) :: visited, expected
    integer :: nothing(0)
    call code%open(functions)
    call check(code%function_count() == 5, "a library exports its functions only")
    call invoker%lease(code)
    call random_number(matrices)
    call task%find(invoker, "add_matrices")
    call task%invoke(matrices, sum, size)
    call check(all(sum == matrices(:, :, 1) + matrices(:, :, 2)) .and. size == 48, "a plain function")
    call task%find(invoker, "described")
    call task%invoke_text("in", text, size, error)
    call check(error%status == HOTLEASE_OK .and. text(:4) == "uid:", "a function's context")
    if (allocated(error%message)) print "(2a)", "    ", error%message
    call task%find(invoker, "refused")
    call task%invoke_text("", text, size, error)
    call check(error%code == 22 .and. text(:size) == "no input", "a function's error")
    call task%invoke_text("x", text(:2), size, error)
    call check(error%code == 22 .and. text(:size) == "as", "a message that is cut")
    call task%find(invoker, "endless", timeout_us=20000_c_int64_t)
    call task%invoke_text("", text, size, error)
    call check(error%status == HOTLEASE_DEADLINE_EXCEEDED, "a function sees that it is cancelled")
    call task%free()
    call invoker%release()

    do expected = 1, 2
      call invoker%lease(code, hotlease_options(state="visits-fortran", patience_ms=20000))
      call task%find(invoker, "visits")
      call task%invoke(nothing, visited)
      call check(visited == expected, "a state outlives its worker")
      call task%free()
      call invoker%release()
    end do
    call invoker%free()
    call code%free()
  end subroutine
end program
