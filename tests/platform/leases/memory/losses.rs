//! Loss of remote memory: its memory server dies, or its lease is revoked.

use super::{MIB, options};
use hotlease_client::{Error, LeaseOptions, RemoteMemory};
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::process::Process;
use hotlease_tests::wait::until;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn memory_that_is_lost_fails_every_call_with_the_reason_and_other_memory_goes_on() {
    let platform = Platform::start_alone();
    for transport in ["shm", "tcp;ofi_rxm"] {
        let lease = || LeaseOptions {
            transport: Some(transport.into()),
            ..platform.lease_options()
        };
        let other = RemoteMemory::allocate(MIB, options(lease())).expect("memory");
        other.write(0, b"kept").expect("it is held");
        let lost_for = |memory: &RemoteMemory, reason: &str| {
            let (error, took) = until("the loss is told", LIMIT, || memory.write(0, &[1; 4096]).err());
            assert!(matches!(error, Error::MemoryLost { .. }), "{transport}: {error}");
            assert!(error.to_string().contains(reason), "{transport}: {error}");
            eprintln!("{transport}: told {took:?} later: {error}");
            for _ in 0..3 {
                let error = memory.read(0, &mut [0; 8]).expect_err("it is lost");
                assert!(matches!(error, Error::MemoryLost { .. }), "{transport}: {error}");
            }
        };
        let killed = RemoteMemory::allocate(MIB, options(lease())).expect("memory");
        let grant = platform.manager().lease_info(&killed.leases()[0].to_string());
        let pid = platform.manager().workers().expect("listed");
        let pid = pid
            .iter()
            .find(|worker| worker.lease == grant.as_ref().expect("listed").id);
        let server = Process::of(pid.expect("its memory server").pid as i32).expect("it runs");
        server.signal(Signal::SIGKILL);
        lost_for(&killed, "memory server died");

        let revoked = RemoteMemory::allocate(MIB, options(lease())).expect("memory");
        platform
            .manager()
            .revoke(&revoked.leases()[0].to_string())
            .expect("it is active");
        lost_for(&revoked, "revoked");
        let mut kept = [0; 4];
        other.read(0, &mut kept).expect("it is held");
        assert_eq!(&kept, b"kept", "{transport}");
    }
}

/// Bytes that the writer of [`until_lost`] writes at once.
const WRITTEN: usize = 256 << 10;

/// Writes a memory again and again, each time with another number, while another thread reads it; `lose` takes it away
/// in between. Both threads must get the error, and no read may return a word that was not written.
fn until_lost(memory: &RemoteMemory, random: &mut StdRng, lose: impl FnOnce()) {
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    let pause = Duration::from_micros(random.random_range(0..30_000));
    let seed = random.random();
    let is_lost = |error: Error| assert!(matches!(error, Error::MemoryLost { .. }), "{error}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                let words = (0..WRITTEN as u64 / 8).flat_map(|word| (number << 32 | word).to_le_bytes());
                let bytes: Vec<u8> = words.collect();
                begun.store(number, Ordering::SeqCst);
                match memory.write(0, &bytes) {
                    Ok(()) => ended.store(number, Ordering::SeqCst),
                    Err(error) => return is_lost(error),
                }
            }
        });
        scope.spawn(|| {
            let mut random = StdRng::seed_from_u64(seed);
            loop {
                let first = random.random_range(0..WRITTEN / 8);
                let mut bytes = vec![0xaa; 8 * random.random_range(1..=WRITTEN / 8 - first)];
                let least = ended.load(Ordering::SeqCst);
                if let Err(error) = memory.read(8 * first as u64, &mut bytes) {
                    return is_lost(error);
                }
                let most = begun.load(Ordering::SeqCst);
                for (place, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
                    let word = u64::from_le_bytes(*word);
                    let (number, index) = (word >> 32, word & u64::from(u32::MAX));
                    let expected = if number == 0 { 0 } else { (first + place) as u64 };
                    assert_eq!(index, expected, "a word of another place, or of none");
                    assert!((least..=most).contains(&number), "{number} is not in {least}..={most}");
                }
            }
        });
        std::thread::sleep(pause);
        lose();
    });
}

/// Rounds: 3 of each kind, or `$HOTLEASE_MEMORY_ROUNDS`.
#[test]
fn no_read_beside_a_loss_returns_a_byte_that_was_not_written() {
    let rounds = std::env::var("HOTLEASE_MEMORY_ROUNDS").map_or(3, |rounds| rounds.parse().expect("a number"));
    let platform = Platform::start_alone();
    let mut random = StdRng::seed_from_u64(28);
    for round in 0..rounds {
        for transport in ["shm", "tcp;ofi_rxm"] {
            for killed in [true, false] {
                let lease = LeaseOptions {
                    transport: Some(transport.into()),
                    ..platform.lease_options()
                };
                let memory = RemoteMemory::allocate(MIB, options(lease)).expect("memory");
                let lease = memory.leases()[0].to_string();
                let server = until("it is listed", LIMIT, || {
                    let workers = platform.manager().workers().ok()?;
                    let server = workers.iter().find(|worker| worker.lease == lease)?;
                    Process::of(server.pid as i32)
                });
                eprintln!("round {round}: {transport}, killed: {killed}");
                until_lost(&memory, &mut random, || match killed {
                    true => server.0.signal(Signal::SIGKILL),
                    false => drop(platform.manager().revoke(&lease).expect("it is active")),
                });
            }
        }
    }
}
