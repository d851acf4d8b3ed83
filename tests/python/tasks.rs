//! Tasks: functions, arguments, results, exceptions.

use crate::requests::*;
use hotlease_client::{Error, Function};
use std::time::Duration;

#[test]
fn small_plain_arguments_and_results_need_no_pickle() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let arguments = [
        vec![0x00],
        vec![0x02],
        int(-5),
        [&[0x03], (1_i64 << 40).to_le_bytes().as_slice()].concat(),
        [&[0x05], 0.25_f64.to_le_bytes().as_slice()].concat(),
        text("für"),
        vec![0x0a, 2, 0, 255],
        tuple(&[]),
    ];
    let named = [text("name"), int(7)].concat();
    let request = [tuple(&arguments), named].concat();
    let (kind, body) = ask(&function, "echo", &request).expect("it runs");
    let pair = tuple(&[text("name"), int(7)]);
    assert_eq!(
        (kind, body),
        (PLAIN, tuple(&[tuple(&arguments), tuple(&[pair])])),
        "values come back as they were sent"
    );
}

#[test]
fn a_function_is_sent_once_and_its_bytes_must_be_those_of_its_name() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let blob = by_reference("operator", "neg");
    let arguments = tuple(&[int(5)]);
    let call = |request: Vec<u8>| function.call(&request).expect("a reply");
    let unknown = call(plain(&blob, false, &arguments));
    assert_eq!(unknown, [UNKNOWN_FUNCTION, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(call(plain(&blob, true, &arguments))[8..], int(-5));
    assert_eq!(
        call(plain(&blob, false, &arguments))[8..],
        int(-5),
        "the key alone is enough"
    );
    let mut forged = plain(&by_reference("operator", "pos"), true, &arguments);
    forged[8] ^= 1;
    let refused = call(forged);
    assert_eq!(refused[0], REFUSED, "{}", String::from_utf8_lossy(&refused[8..]));
}

#[test]
fn damaged_requests_are_refused_and_the_worker_goes_on() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let blob = by_reference("tasks", "pid");
    let good = plain(&blob, true, NOTHING);
    let pid = function.call(&good).expect("it runs");
    let buffered = with_buffer(&by_reference("tasks", "look"), false, &[1; 100]);
    let mut spoiled: Vec<Vec<u8>> = (0..good.len()).map(|length| good[..length].to_vec()).collect();
    // From 24 bytes on, the request without its function's bytes is valid, because the worker has a function of this
    // key.
    spoiled.truncate(24);
    for (at, byte) in [(0, 3), (0, 200), (1, 2), (2, 1), (3, 255), (4, 255), (7, 255)] {
        let mut request = good.clone();
        request[at] = byte;
        spoiled.push(request);
    }
    for (at, byte) in [(2, 0), (3, 255), (30, 1), (39, 255), (24, 200)] {
        let mut request = buffered.clone();
        request[at] = byte;
        spoiled.push(request);
    }
    spoiled.push(plain(&blob, false, &[0x0b, 200]));
    spoiled.push(plain(&blob, false, &[0x08, 255, 255, 255, 255]));
    spoiled.push(plain(&blob, false, &[0x0b, 1].repeat(40)));
    spoiled.push(plain(&blob, false, &[0x06, 255, 255, 255, 127]));
    spoiled.push(plain(&blob, false, &[0x09, 1, 0xff]));
    spoiled.push(take(&[1, 0, 0, 0, 0, 0, 0, 0]));
    spoiled.push(take(&[]));
    for request in spoiled {
        let reply = function.call(&request).expect("a reply");
        assert!(
            // Python reports a blob that unpickles wrongly.
            [REFUSED, EXCEPTION].contains(&reply[0]),
            "{request:02x?} was answered {reply:02x?}"
        );
    }
    assert_eq!(
        function.call(&good).expect("it runs"),
        pid,
        "the same process serves on"
    );
}

#[test]
fn exceptions_come_with_their_traceback_whether_or_not_they_pickle() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    for (name, kind, last) in [
        ("fails", EXCEPTION, "KeyError: 'the key that is missing'"),
        ("fails_unpicklably", EXCEPTION_TEXT, "Unpicklable: but it has a text"),
        ("generator", EXCEPTION, "cannot pickle 'generator' object"),
    ] {
        let request = plain(&by_reference("tasks", name), true, NOTHING);
        let reply = function.call(&request).expect("a reply");
        let length = u32::from_le_bytes(reply[4..8].try_into().expect("4 bytes")) as usize;
        let traceback = String::from_utf8_lossy(&reply[8..8 + length]).into_owned();
        assert_eq!(reply[0], kind, "{traceback}");
        assert!(traceback.contains(last), "{traceback}");
        assert_eq!(traceback.contains("tasks.py"), name != "generator", "{traceback}");
        if kind == EXCEPTION_TEXT {
            assert_eq!(String::from_utf8_lossy(&reply[8 + length..]), last);
        }
    }
    let absent = plain(&by_reference("tasks", "absent"), true, NOTHING);
    assert_eq!(function.call(&absent).expect("a reply")[0], EXCEPTION);
}

#[test]
fn large_buffers_reach_the_function_where_they_lie() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let look = by_reference("tasks", "look");
    let told = |writable, bytes: usize| {
        let reply = function
            .call(&with_buffer(&look, writable, &vec![1; bytes]))
            .expect("a reply");
        assert_eq!(reply[0], PLAIN, "{}", String::from_utf8_lossy(&reply[8..]));
        String::from_utf8_lossy(&reply[8..]).into_owned()
    };
    assert!(told(false, 100).contains("bytes"), "small ones are copies");
    assert!(told(true, 100).contains("bytearray"));
    assert!(
        told(false, 1 << 20).contains("memoryview\u{2}"),
        "read-only unless said otherwise"
    );
    assert!(told(true, 1 << 20).contains("memoryview\u{1}"));
}

#[test]
fn a_function_that_keeps_its_arguments_has_its_worker_replaced() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let pid = ask(&function, "pid", NOTHING).expect("it runs");
    let buffer = vec![0; 1 << 20];
    let keeps = |name: &str| function.call(&with_buffer(&by_reference("tasks", name), false, &buffer));
    // Nothing refers to the cycle from outside when the worker looks for references.
    assert_eq!(keeps("keeps_in_a_cycle").expect("a reply")[8..], [0]);
    assert_eq!(ask(&function, "pid", NOTHING).expect("it runs"), pid);
    let told = keeps("keeps").expect("the reply is out before the worker goes");
    let text = String::from_utf8_lossy(&told[8..]).into_owned();
    assert!(
        told[0] == EXCEPTION && text.contains("must copy what it keeps"),
        "{text}"
    );
    let next = next_pid(&function);
    assert_ne!(next, pid.1, "its memory is used for other things now: another process");
}

/// Process number of the worker that replaces an ending worker.
fn next_pid(function: &Function) -> Vec<u8> {
    loop {
        match ask(function, "pid", NOTHING) {
            Ok((PLAIN, pid)) => return pid,
            Err(Error::WorkerDied { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_result_that_does_not_fit_is_kept_until_it_is_taken() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let (kind, told) = ask(&function, "large", &tuple(&[int(100)])).expect("a reply");
    assert_eq!(kind, KEPT);
    let bytes = u64::from_le_bytes(told[8..16].try_into().expect("8 bytes")) as usize;
    let ticket = &told[..8];
    let small = function.call(&take(ticket)).expect("a reply");
    assert_eq!(small[0], REFUSED, "it stays where it is");
    let function = function.output_bytes(bytes);
    let reply = function.call(&take(ticket)).expect("a reply");
    assert_eq!((reply[0], reply[2], reply.len()), (PICKLED, 1, bytes));
    let buffer = &reply[reply.len() - (100 << 10)..];
    assert!(buffer.iter().all(|byte| *byte == b'x'));
    assert_eq!((reply.len() - buffer.len()) % 64, 0, "the buffer is aligned");
    assert_eq!(
        function.call(&take(ticket)).expect("a reply")[0],
        REFUSED,
        "it is taken once"
    );
}

#[test]
fn deadline_and_cancellation_reach_the_function() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let hurried = function.clone().timeout(Some(Duration::from_millis(300)));
    let told_in_time = || {
        let pid = ask(&function, "pid", NOTHING).expect("it runs");
        let late = ask(&hurried, "cancelled_in_time", NOTHING);
        assert!(
            matches!(late, Err(Error::Deadline { .. } | Error::WorkerDied { .. })),
            "{late:?}"
        );
        ask(&function, "pid", NOTHING).expect("it runs") == pid
    };
    // A busy machine may not let the function run in the 50 ms after which its worker is ended.
    assert!(
        (0..20).any(|_| told_in_time()),
        "a function that returns when it is told keeps its worker"
    );
    let nothing = tuple(&[vec![0x00], vec![0x01], vec![0x00]]);
    assert_eq!(ask(&function, "outside", NOTHING).expect("it runs"), (PLAIN, nothing));
}
