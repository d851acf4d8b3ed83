//! Tests of the forecast in virtual time: the tests know when leases arrive, the forecast does not.

use super::*;

const LEAST: Duration = Duration::from_secs(60);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Pseudo-random numbers, the same each time.
struct Chance(u64);

impl Chance {
    /// A number greater than 0, at most 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed times between arrivals.
    fn gap(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-self.next().ln())
    }
}

/// A node with a forecast, which makes one worker at a time.
struct World {
    forecast: Forecast,
    now: Duration,
    making: Duration,
    /// Number of workers that are ready.
    ready: usize,
    /// Time at which the worker that is being made is ready.
    next: Option<Duration>,
    /// Ends of running leases.
    ends: Vec<Duration>,
    warm: usize,
    cold: usize,
    most: usize,
    /// Number of waiting workers, integrated over time, seconds.
    borrowed: f64,
    starts: usize,
}

impl World {
    fn new(making: Duration) -> Self {
        Self {
            forecast: Forecast::new(LEAST),
            now: Duration::ZERO,
            making,
            ready: 0,
            next: None,
            ends: Vec::new(),
            warm: 0,
            cold: 0,
            most: 0,
            borrowed: 0.0,
            starts: 0,
        }
    }

    /// Runs everything that happens up to this time.
    fn until(&mut self, then: Duration) {
        loop {
            let stock = self.forecast.stock(self.now);
            self.ready = self.ready.min(stock.keep);
            if self.ready >= stock.fill {
                self.next = None;
            } else if self.next.is_none() {
                self.next = Some(self.now + self.making);
                self.starts += 1;
            }
            self.most = self.most.max(self.ready);
            let end = self.ends.iter().min().copied();
            let change = stock.until.filter(|until| *until > self.now);
            let event = [self.next, end, change].into_iter().flatten().min();
            let at = event.filter(|at| *at <= then).unwrap_or(then);
            self.borrowed += self.ready as f64 * (at - self.now).as_secs_f64();
            self.now = at;
            if event.is_none_or(|event| event > then) {
                return;
            }
            if end == Some(at) {
                let ended = self.ends.iter().position(|end| *end == at).expect("it is there");
                self.ends.swap_remove(ended);
                self.forecast.record_end(at, 1);
            } else if self.next == Some(at) {
                self.next = None;
                self.ready += 1;
                self.forecast.record_made(self.making);
            }
        }
    }

    /// Adds a lease of one worker.
    fn lease(&mut self, at: Duration, lasting: Duration) {
        self.until(at);
        self.forecast.record_arrival(at, 1);
        match self.ready {
            0 => self.cold += 1,
            _ => {
                self.ready -= 1;
                self.warm += 1;
            }
        }
        self.ends.push(at + lasting);
    }

    fn forget_the_beginning(&mut self) {
        (self.warm, self.cold, self.most, self.borrowed, self.starts) = (0, 0, 0, 0.0, 0);
    }
}

#[test]
fn leases_in_sequence_keep_one_worker_waiting_and_start_no_second_one() {
    let mut world = World::new(ms(100));
    for number in 0..50u64 {
        world.lease(ms(5000 * number), ms(4000));
        world.until(ms(5000 * number + 3999));
        assert_eq!(
            (world.ready, world.starts as u64),
            (0, number),
            "one is started while a lease runs"
        );
    }
    assert_eq!((world.cold, world.warm, world.most), (1, 49, 1));
}

#[test]
fn a_lease_of_many_workers_leaves_as_many() {
    let mut forecast = Forecast::new(LEAST);
    forecast.record_arrival(ms(0), 7);
    assert_eq!(forecast.stock(ms(1)).fill, 0, "all are in use");
    forecast.record_end(ms(1000), 7);
    let stock = forecast.stock(ms(1001));
    assert_eq!((stock.fill, stock.keep, stock.until), (7, 7, Some(ms(1000) + LEAST)));
}

#[test]
fn at_a_steady_rate_19_of_20_leases_are_warm_with_about_as_many_workers_as_littles_law_says() {
    for seed in 1..=20 {
        let mut chance = Chance(seed);
        // 4 leases a second, each of 1 s, and 0.1 s to make a worker: 4.4 workers are in use or being made on average.
        let mut world = World::new(ms(100));
        let mut at = ms(0);
        for number in 0..2000 {
            at += chance.gap(ms(250));
            world.lease(at, ms(1000));
            if number == 100 {
                world.forget_the_beginning();
            }
        }
        let share = world.warm as f64 / (world.warm + world.cold) as f64;
        assert!(share > 0.9, "seed {seed}: {share} of leases were warm");
        // The 95th percentile of such counts is 9; the last 32 counts are only a sample.
        assert!(world.most <= 16, "seed {seed}: {} waited", world.most);
    }
}

#[test]
fn the_number_of_waiting_workers_follows_the_rate_of_arrivals() {
    let mut world = World::new(ms(100));
    let mut chance = Chance(7);
    let mut at = ms(0);
    let mut of_rate = |gap: Duration, leases| {
        for _ in 0..leases {
            at += chance.gap(gap);
            world.lease(at, ms(1000));
        }
        world.forecast.number()
    };
    let (few, many) = (of_rate(ms(2000), 100), of_rate(ms(125), 200));
    let few_again = of_rate(ms(2000), 100);
    assert!(few <= 4 && many >= 8 && few_again <= 4, "{few}, {many}, {few_again}");
}

#[test]
fn from_the_third_burst_on_all_leases_are_warm() {
    let mut world = World::new(ms(100));
    for burst in 0..10u64 {
        if burst == 2 {
            world.forget_the_beginning();
        }
        for lease in 0..8 {
            world.lease(ms(30_000 * burst + lease), ms(2000));
        }
    }
    assert_eq!((world.warm, world.cold, world.most), (64, 0, 8));
}

#[test]
fn a_single_burst_is_forgotten() {
    let mut world = World::new(ms(100));
    let mut at = ms(0);
    for round in 0..200u64 {
        let at_once = if round == 20 { 8 } else { 1 };
        for _ in 0..at_once {
            at += ms(1);
            world.lease(at, ms(100));
        }
        at += ms(5000);
        world.until(at);
        assert!(round < 60 || world.ready == 1, "round {round}: {} wait", world.ready);
    }
}

#[test]
fn without_arrivals_no_worker_waits_after_a_while() {
    let mut world = World::new(ms(100));
    for lease in 0..100u64 {
        world.lease(ms(1000 * lease), ms(500));
    }
    world.until(ms(110_000));
    assert_eq!(world.ready, 1);
    world.until(ms(99_500) + LEAST);
    assert_eq!(world.ready, 0, "it fell to none");
    world.forget_the_beginning();
    world.until(Duration::from_secs(100_000));
    assert_eq!((world.most, world.borrowed, world.starts), (0, 0.0, 0));
    assert_eq!(Forecast::new(LEAST).stock(ms(5)).fill, 0, "no lease ever came");
}

#[test]
fn leases_that_come_every_five_minutes_are_waited_for_only_when_they_are_due() {
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let mut world = World::new(ms(500));
    let mut chance = Chance(3);
    let mut at = ms(0);
    for number in 0..100 {
        // The lease arrives some seconds late.
        at += minutes(5) + Duration::from_secs_f64(10.0 * chance.next());
        if number == 10 {
            world.forget_the_beginning();
        }
        world.lease(at, ms(10_000));
    }
    assert_eq!((world.warm, world.cold), (90, 0));
    let share = world.borrowed / (90.0 * minutes(5).as_secs_f64());
    assert!(share < 0.25, "one waited {share} of the time");
}

#[test]
fn a_client_that_comes_once_a_day_is_treated_as_an_unknown_one() {
    let mut forecast = Forecast::new(LEAST);
    for day in 0..10 {
        let day = Duration::from_secs(24 * 3600 * day);
        forecast.record_arrival(day, 1);
        forecast.record_end(day + ms(1000), 1);
    }
    let as_unknown = WaitInterval {
        from: Duration::ZERO,
        until: LEAST,
    };
    assert_eq!(forecast.stay(), as_unknown);
}

#[test]
fn no_lease_waits_longer_than_the_limit_at_a_stretch() {
    let mut forecast = Forecast::new(LEAST);
    let mut now = ms(0);
    for seconds in [10, 7200, 20, 7200, 30, 7200, 15] {
        now += Duration::from_secs(seconds);
        forecast.record_arrival(now, 1);
        forecast.record_end(now, 1);
    }
    let stay = forecast.stay();
    assert_eq!((stay.from, stay.until), (Duration::ZERO, WAIT_MAX));
}

#[test]
fn the_memory_of_a_forecast_is_bounded() {
    let mut forecast = Forecast::new(LEAST);
    for number in 0..10_000u64 {
        forecast.record_arrival(ms(number), 1);
        forecast.record_end(ms(number), 1);
    }
    assert!(forecast.quiet.len() <= ARRIVALS_MAX && forecast.away.len() <= ARRIVALS_MAX);
    assert!(forecast.in_making.len() <= ARRIVALS_MAX);
    // More ends than beginnings, which should not happen.
    forecast.record_end(ms(10_000), usize::MAX);
    assert_eq!(forecast.in_use, 0);
}
