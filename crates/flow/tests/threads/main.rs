//! The kernel with a driver: closures on threads, submitted from several threads at once.

mod pool;

use hotlease_flow::{FlowLimits, FlowTask, Reaction};
use pool::{End, Job, Pool};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

fn job(function: impl Fn(&[u64]) -> Result<u64, String> + Send + Sync + 'static) -> Job {
    Arc::new(function)
}

fn mixed(number: u64, inputs: &[u64]) -> u64 {
    let mix = |sum: u64, input: &u64| sum.rotate_left(7) ^ input.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    inputs.iter().fold(number, mix)
}

#[test]
fn random_graphs_from_four_threads_give_what_one_thread_computes() {
    const TASKS: u64 = 5_000;
    let limits = FlowLimits {
        pending_max: 300,
        ..FlowLimits::default()
    };
    let pool = Pool::new(3, limits);
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    std::thread::scope(|scope| {
        for submitter in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed ^ submitter);
                let mut held = Vec::new();
                for number in 0..TASKS {
                    let count = random.random_range(0..4.min(held.len() + 1));
                    let inputs: Vec<(_, u64)> = (0..count).map(|_| held[random.random_range(0..held.len())]).collect();
                    let ids: Vec<_> = inputs.iter().map(|(task, _)| *task).collect();
                    let values: Vec<_> = inputs.iter().map(|(_, value)| *value).collect();
                    let task = pool.submit(FlowTask::new, job(move |inputs| Ok(mixed(number, inputs))), &ids);
                    held.push((task, mixed(number, &values)));
                    if held.len() > 50 {
                        let (task, expected) = held.remove(random.random_range(0..held.len()));
                        if number % 16 == 0 {
                            assert_eq!(pool.wait(task), End::Done(expected));
                        }
                        pool.release(task);
                    }
                }
                for (task, expected) in held {
                    assert_eq!(pool.wait(task), End::Done(expected));
                    pool.release(task);
                }
            });
        }
    });
    let load = pool.load_at_rest();
    assert_eq!((load.pending, load.known, load.inputs), (0, 0, 0), "something is left");
}

#[test]
fn a_flaky_task_is_tried_as_often_as_it_says_and_a_hopeless_one_fails_its_dependents() {
    let pool = Pool::new(2, FlowLimits::default());
    let tries = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&tries);
    let flaky = move |_: &[u64]| match count.fetch_add(1, Ordering::SeqCst) {
        2 => Ok(7),
        _ => Err("not yet".into()),
    };
    let flaky = pool.submit(|job| FlowTask::new(job).retries(2), job(flaky), &[]);
    let after = pool.submit(FlowTask::new, job(|inputs| Ok(inputs[0] + 1)), &[flaky]);
    assert_eq!(pool.wait(after), End::Done(8));
    assert_eq!(tries.load(Ordering::SeqCst), 3);

    let broken = pool.submit(|job| FlowTask::new(job).retries(5), job(|_| panic!("on purpose")), &[]);
    let next = pool.submit(FlowTask::new, job(|_| Ok(0)), &[after, broken]);
    let last = pool.submit(FlowTask::new, job(|_| Ok(0)), &[next]);
    assert_eq!(pool.wait(broken), End::Failed("it panicked".into()));
    assert_eq!(pool.wait(last), End::Dependency(vec![last, next, broken]));
    // A task submitted after the failure fails in the same way.
    let late = pool.submit(FlowTask::new, job(|_| Ok(0)), &[last]);
    assert_eq!(pool.wait(late), End::Dependency(vec![late, last, next, broken]));
}

#[test]
fn a_cancelled_task_never_starts_and_one_that_runs_keeps_what_it_returns() {
    let pool = Pool::new(1, FlowLimits::default());
    let (started, running) = mpsc::channel();
    let (go, gate) = mpsc::channel();
    let gate = std::sync::Mutex::new((started, gate));
    let slow = pool.submit(
        FlowTask::new,
        job(move |_| {
            let (started, gate) = &*gate.lock().expect("one run");
            started.send(()).map_err(|error| error.to_string())?;
            gate.recv().map_err(|error| error.to_string())?;
            Ok(1)
        }),
        &[],
    );
    let ran = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ran);
    let after = pool.submit(
        FlowTask::new,
        job(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(2)
        }),
        &[slow],
    );
    let last = pool.submit(FlowTask::new, job(|_| Ok(3)), &[after]);
    running.recv().expect("it started");
    assert_eq!(pool.cancel(after), Reaction::Applied);
    assert_eq!(pool.cancel(after), Reaction::TooLate);
    assert_eq!(pool.wait(last), End::Dependency(vec![last, after]));
    assert_eq!(pool.cancel(slow), Reaction::Stopping);
    go.send(()).expect("it waits");
    assert_eq!(pool.wait(slow), End::Done(1), "it returned all the same");
    assert_eq!(pool.wait(after), End::Cancelled);
    drop(pool);
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}
