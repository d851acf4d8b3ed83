//! More buffers than may be registered with a worker at a time, with real workers, on one node and over a fabric.

use hotlease_client::{Buffer, Error, Invoker, LeaseOptions};
use hotlease_tests::platform::Platform;

const SIZE: usize = 200_000;

fn invoker(platform: &Platform, transport: &str, registered_buffers: u32) -> Option<Invoker> {
    let code = hotlease_client::Code::open(hotlease_tests::library::library("behaved")).unwrap();
    let options = LeaseOptions {
        transport: Some(transport.into()),
        registered_buffers,
        ..platform.lease_options()
    };
    match Invoker::allocate(&code, options) {
        Err(error @ Error::NoTransport { .. }) => {
            eprintln!("skipped over {transport}: {error}");
            None
        }
        allocated => Some(allocated.unwrap()),
    }
}

fn filled(invoker: &Invoker, with: u8) -> Buffer<u8> {
    let mut buffer = invoker.buffer(SIZE).unwrap();
    buffer.fill(with);
    buffer
}

#[test]
fn many_threads_use_more_buffers_than_their_worker_may_know() {
    const THREADS: usize = 4;
    let platform = Platform::start();
    for transport in ["shm", "ofi"] {
        // As many buffers as can be in use at a time.
        let Some(invoker) = invoker(&platform, transport, 2 * THREADS as u32) else {
            continue;
        };
        let increment = invoker.function("increment").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (invoker, increment) = (&invoker, &increment);
                scope.spawn(move || {
                    let mut inputs: Vec<_> = (0..5).map(|at| filled(invoker, at)).collect();
                    let mut output = filled(invoker, 0);
                    for round in 0..60u8 {
                        let at = usize::from(round) % inputs.len();
                        let input = &mut inputs[at];
                        input[SIZE - 1] = round;
                        let length = increment.invoke_buffer(&*input, &mut output);
                        assert_eq!(length.unwrap(), SIZE, "{transport}, thread {thread}, round {round}");
                        assert_eq!(
                            (output[0], output[SIZE - 1]),
                            (at as u8 + 1, round + 1),
                            "{transport}, thread {thread}, round {round}"
                        );
                    }
                });
            }
        });
    }
}

#[test]
fn a_buffer_that_made_room_is_registered_again_while_the_slot_is_busy() {
    let platform = Platform::start();
    for transport in ["shm", "ofi"] {
        let Some(invoker) = invoker(&platform, transport, 2) else {
            continue;
        };
        let increment = invoker.function("increment").unwrap();
        let [a, b, c] = [1, 2, 3].map(|with| filled(&invoker, with));
        for (round, buffer) in [&a, &b, &c, &b, &a].repeat(20).into_iter().enumerate() {
            // This call is in flight while the client deregisters one buffer and registers another: the slot reads the
            // messages about the buffers after the call.
            let busy = increment.submit(&[7; 4000]).unwrap();
            let produced = increment.submit_from_buffer(buffer.slice(..100)).unwrap();
            assert_eq!(busy.wait().unwrap(), [8; 4000], "{transport}, round {round}");
            assert_eq!(
                produced.wait().unwrap(),
                [buffer[0] + 1; 100],
                "{transport}, round {round}"
            );
        }
    }
}
