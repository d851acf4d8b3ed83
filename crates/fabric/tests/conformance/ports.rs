//! Promises of a port to its peers and channels.

use crate::served::{CALL, Served, Stop, Wait, echo, pattern};
use crate::transport::{Fabric, LONG, introduce, open, shape};
use hotlease_fabric::ofi::{OfiError, Port};
use hotlease_fabric::ring::FarRing;
use hotlease_wire::fabric::PortAddress;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Drives a port in another thread while the test runs.
pub fn attended<R>(port: &Arc<Port>, test: impl FnOnce() -> R) -> R {
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let attendant = scope.spawn(|| {
            while !stop.is_set() {
                port.progress();
                std::thread::yield_now();
            }
        });
        let guard = stop.guard();
        let result = test();
        drop(guard);
        attendant.join().unwrap();
        result
    })
}

pub fn probe_measures_the_link_and_needs_the_key(fabric: &Fabric) {
    let (first, second) = (fabric.port(), fabric.port());
    let (to_second, _to_first) = introduce(&first, &second);
    attended(&second, || {
        let took = first.probe(&to_second, LONG).unwrap();
        assert!(took > Duration::ZERO && took < LONG);
    });
    let stranger = fabric.port();
    let to_second = stranger.peer(&second.address(), 4711).unwrap();
    let short = Duration::from_millis(200);
    attended(&second, || {
        let error = stranger.probe(&to_second, short).unwrap_err();
        assert!(matches!(error, OfiError::Timeout { .. }), "{error}");
        let begin = Instant::now();
        while second.counters().wrong_key == 0 {
            assert!(
                begin.elapsed() < LONG,
                "a probe with a key that is no link's is counted"
            );
            stranger.progress();
        }
    });
}

pub fn addresses_of_another_format_are_refused(fabric: &Fabric) {
    let port = fabric.port();
    let own = port.address();
    let with = |address: Vec<u8>| PortAddress { address, ..own.clone() };
    let mut long = own.address.clone();
    long.extend([1; 512]);
    for bad in [
        with(Vec::new()),
        with(vec![0]),
        with(vec![0xff; own.address.len()]),
        with(long),
    ] {
        let error = port.peer(&bad, 1).err().expect("a bad address was taken");
        assert!(matches!(error, OfiError::BadAddress { .. }), "{error}");
    }
    let other = PortAddress {
        provider: "carrier pigeon".into(),
        ..own
    };
    assert!(matches!(port.peer(&other, 1).err(), Some(OfiError::BadAddress { .. })));
}

pub fn many_channels_share_a_port(fabric: &Fabric) {
    let (to_worker, to_client) = introduce(&fabric.port(), &fabric.port());
    let (mut clients, mut workers, mut sides) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..24 {
        let ends = open(&to_worker, &to_client, shape(8, 12_000), shape(8, 12_000));
        clients.push(ends.client);
        workers.push(ends.worker);
        sides.push((ends.client_side, ends.worker_side));
    }
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let guard = stop.guard();
        let side = &sides[0].1;
        let worker = scope.spawn(|| echo(&mut workers, side, &stop, Wait::Poll));
        for number in 0..40u64 {
            for (channel, client) in clients.iter().enumerate() {
                let input = pattern(number + channel as u64, [8, 500, 12_000][channel % 3]);
                client.publish(number, &CALL, &[&input]).unwrap();
            }
            for (channel, client) in clients.iter().enumerate() {
                let begin = Instant::now();
                let header = loop {
                    match client.poll(number) {
                        Some(header) => break header.unwrap(),
                        None => assert!(begin.elapsed() < LONG, "no reply on channel {channel}"),
                    }
                };
                let input = pattern(number + channel as u64, [8, 500, 12_000][channel % 3]);
                let mut output = vec![0; input.len()];
                client.read(number, &header, &mut output);
                assert!(output == input, "channel {channel}, invocation {number}");
            }
        }
        drop(guard);
        worker.join().unwrap();
    });
}

pub fn many_clients_share_a_port(fabric: &Fabric) {
    let slot = fabric.port();
    let (mut clients, mut workers, mut sides) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..8 {
        let (to_worker, to_client) = introduce(&fabric.port(), &slot);
        let ends = open(&to_worker, &to_client, shape(8, 12_000), shape(8, 12_000));
        clients.push(ends.client);
        workers.push(ends.worker);
        sides.push((ends.client_side, ends.worker_side));
    }
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let guard = stop.guard();
        let side = &sides[0].1;
        let worker = scope.spawn(|| echo(&mut workers, side, &stop, Wait::Sleep));
        for number in 0..50u64 {
            let input = |who: usize| pattern(number * 8 + who as u64, [8, 3000, 12_000][who % 3]);
            for (who, client) in clients.iter().enumerate() {
                client.publish(number, &CALL, &[&input(who)]).unwrap();
            }
            for (who, client) in clients.iter().enumerate() {
                let begin = Instant::now();
                let header = loop {
                    match client.poll(number) {
                        Some(header) => break header.unwrap(),
                        None => assert!(
                            begin.elapsed() < LONG,
                            "no reply to client {who}: {:?} {:?}",
                            slot.counters(),
                            client.far().port().counters()
                        ),
                    }
                };
                let mut output = vec![0; input(who).len()];
                client.read(number, &header, &mut output);
                assert!(output == input(who), "client {who}, invocation {number}");
            }
        }
        drop(guard);
        worker.join().unwrap();
    });
    assert!(slot.counters().delivered >= 400);
}

pub fn two_threads_may_sleep_on_one_port(fabric: &Fabric) {
    let (to_worker, to_client) = introduce(&fabric.port(), &fabric.port());
    let (first, second) = (
        open(&to_worker, &to_client, shape(4, 8128), shape(4, 8128)),
        open(&to_worker, &to_client, shape(4, 8128), shape(4, 8128)),
    );
    let slots = [Wait::Poll, Wait::Sleep];
    std::thread::scope(|scope| {
        for (ends, slot) in [first, second].into_iter().zip(slots) {
            scope.spawn(move || {
                let served = Served::start(ends, Wait::Sleep, slot);
                for number in 0..200 {
                    served.round_trip(number, &pattern(number, 900));
                }
                served.client.far().progress();
            });
        }
    });
}
