! Leases one slot of a worker, calls a function on it, and maps another function over 179 angles.
!
! Run it where it was built, or name the function library: pendulum path/to/libpendulum_functions.so
program pendulum
  use, intrinsic :: iso_c_binding
  use hotlease
  implicit none
  real(c_double), parameter :: pi = acos(-1.0_c_double)
  type(hotlease_code) :: code
  type(hotlease_invoker) :: invoker
  type(hotlease_function) :: total, period
  type(hotlease_usage) :: usage
  type(hotlease_error) :: error
  real(c_double) :: sum, angles(179), times(179)
  integer :: degrees
  character(1000) :: library = "libpendulum_functions.so"
  if (command_argument_count() > 0) call get_command_argument(1, library)

  ! Without `error`, a procedure that fails prints the reason and stops the program.
  call code%open(library)
  call invoker%lease(code, hotlease_options(slots=1))
  call total%find(invoker, "total")
  call total%invoke([1.0_c_double, 2.0_c_double, 39.0_c_double], sum)
  print "(a, f0.0)", "1 + 2 + 39 = ", sum

  ! One call for each angle, on all slots of the lease.
  call period%find(invoker, "period")
  angles = [(degrees * pi / 180, degrees = 1, 179)]
  call period%map(angles, times, size(angles))
  do degrees = 30, 179, 30
    print "(a, i3, a, f8.5, a)", "a swing of ", degrees, " degrees takes ", times(degrees) / (2 * pi), " of a small one"
  end do

  ! With `error`, the program continues. This call fails, because it sends two numbers and the function takes one.
  call period%invoke(angles(:2), sum, error=error)
  if (error%status == HOTLEASE_FUNCTION_FAILED) print "(a, i0, 2a)", "error ", error%code, ": ", error%message

  call invoker%release(usage)
  print "(i0, a)", usage%invocations, " calls"
  call total%free()
  call period%free()
  call invoker%free()
  call code%free()
end program
