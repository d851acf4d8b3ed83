! Two functions. They are compiled into libpendulum_functions.so. No program links with this library: the client sends the
! file's bytes to the worker, and the worker calls the functions.
module pendulum_functions
  use, intrinsic :: iso_c_binding
  use hotlease_functions
  implicit none

  ! Marks `period` as a function of the context interface, which may run again if its worker died.
  integer(c_int32_t), bind(C) :: hotlease_context_period = 1, hotlease_idempotent_period = 1
contains

  ! The plain interface: a function gets the input, the input's size in bytes, and the output; it returns the number of
  ! bytes written.
  function total(in, size, out) bind(C) result(written)
    integer(c_int32_t), value :: size
    real(c_double), intent(in) :: in(size / 8)
    real(c_double), intent(out) :: out
    integer(c_int32_t) :: written
    out = sum(in)
    written = 8
  end function

  ! The context interface: 64-bit sizes, the capacity of the output, errors, and a context. Computes the time of a full
  ! swing of a pendulum that starts at rest at the angle `in`, in units of sqrt(length / gravity).
  function period(context, in, size, out, capacity, produced) bind(C) result(code)
    type(hotlease_context), intent(in) :: context
    integer(c_int64_t), value :: size, capacity
    real(c_double), intent(in) :: in
    real(c_double), intent(out) :: out
    integer(c_int64_t), intent(out) :: produced
    integer(c_int32_t) :: code
    real(c_double), parameter :: step = 1e-4_c_double
    real(c_double) :: angle, before, speed, time
    if (size /= 8 .or. capacity < 8) then
      code = hotlease_fail(1, "takes one angle, and gives one time", out, capacity, produced)
      return
    end if
    angle = in
    before = in
    speed = 0
    time = 0
    do while (angle > 0) ! a quarter of the swing
      before = angle
      call advance(angle, speed, step)
      time = time + step
      if (hotlease_cancelled(context)) then
        code = hotlease_fail(2, "out of time", out, capacity, produced)
        return
      end if
    end do
    out = 4 * (time - step * angle / (angle - before)) ! the angle became 0 during the last step
    produced = 8
    code = 0
  end function

  ! One step by the method of Runge and Kutta.
  pure subroutine advance(angle, speed, step)
    real(c_double), intent(inout) :: angle, speed
    real(c_double), intent(in) :: step
    real(c_double) :: a(4), s(4)
    s(1) = speed;                   a(1) = -sin(angle)
    s(2) = speed + step / 2 * a(1); a(2) = -sin(angle + step / 2 * s(1))
    s(3) = speed + step / 2 * a(2); a(3) = -sin(angle + step / 2 * s(2))
    s(4) = speed + step * a(3);     a(4) = -sin(angle + step * s(3))
    angle = angle + step / 6 * (s(1) + 2 * s(2) + 2 * s(3) + s(4))
    speed = speed + step / 6 * (a(1) + 2 * a(2) + 2 * a(3) + a(4))
  end subroutine
end module
