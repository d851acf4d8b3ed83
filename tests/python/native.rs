//! Functions of libraries, which a Python worker calls itself.

use crate::requests::*;
use hotlease_tests::library::library;
use std::path::PathBuf;

const NATIVE: u8 = 3;
/// Recipe for the result, which the worker only repeats.
const RECIPE: &[u8] = b"any bytes that make an object";

fn arguments(room: u64, name: &str, recipe: &[u8]) -> Vec<u8> {
    let name_bytes = (name.len() as u16).to_le_bytes();
    [&room.to_le_bytes(), &name_bytes[..], name.as_bytes(), recipe].concat()
}

/// A request with one buffer. `with`: whether the request contains the library.
fn request(library: &[u8], with: bool, arguments: &[u8], input: &[u8]) -> Vec<u8> {
    let sent = if with { library } else { &[] };
    let mut request = vec![NATIVE, 0, 1, 0];
    request.extend((sent.len() as u32).to_le_bytes());
    request.extend(key(library));
    request.extend((arguments.len() as u64).to_le_bytes());
    request.extend((input.len() as u64).to_le_bytes());
    request.extend(sent);
    request.extend(arguments);
    request.resize(request.len().next_multiple_of(64), 0);
    request.extend(input);
    request
}

/// Recipe and bytes of a result.
fn result(reply: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let text = String::from_utf8_lossy(&reply[8..]);
    assert_eq!(
        reply[..4],
        [PICKLED, 0, 1, 0],
        "a pickled result with one buffer: {text}"
    );
    let word = |at: usize| u64::from_le_bytes(reply[at..at + 8].try_into().expect("8 bytes")) as usize;
    let (recipe, bytes) = (word(8), word(16));
    let start = (24 + recipe).next_multiple_of(64);
    assert_eq!(reply.len(), start + bytes);
    assert!(
        reply[24 + recipe..start].iter().all(|byte| *byte == 0),
        "nothing of others stands between"
    );
    (reply[24..24 + recipe].to_vec(), reply[start..].to_vec())
}

fn behaved() -> Vec<u8> {
    let path: PathBuf = library("behaved");
    std::fs::read(path).expect("the library")
}

#[test]
fn a_library_is_sent_once_and_its_functions_are_called_on_the_bytes_of_the_request() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let library = behaved();
    let call = |request: Vec<u8>| function.call(&request).expect("a reply");
    let echo = arguments(100, "echo", RECIPE);
    assert_eq!(call(request(&library, false, &echo, b"abc"))[0], UNKNOWN_FUNCTION);
    assert_eq!(
        result(&call(request(&library, true, &echo, b"abc"))),
        (RECIPE.to_vec(), b"abc".to_vec())
    );
    let other = arguments(100, "increment", b"");
    assert_eq!(
        result(&call(request(&library, false, &other, b"abc"))),
        (vec![], b"bcd".to_vec())
    );
    let nothing = arguments(0, "echo", RECIPE);
    assert_eq!(result(&call(request(&library, false, &nothing, b""))).1, b"");
}

#[test]
fn a_result_that_does_not_fit_the_reply_is_kept() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let input = vec![7; 100_000];
    let request = request(&behaved(), true, &arguments(100_000, "echo", RECIPE), &input);
    let reply = function.call(&request).expect("a reply");
    assert_eq!(reply[0], KEPT);
    let size = u64::from_le_bytes(reply[16..24].try_into().expect("8 bytes")) as usize;
    let mut whole = vec![0; size];
    let length = function.invoke(&take(&reply[8..16]), &mut whole).expect("it is kept");
    assert_eq!(length, size);
    assert_eq!(result(&whole), (RECIPE.to_vec(), input));
}

#[test]
fn damaged_native_requests_are_refused_and_the_worker_goes_on() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let library = behaved();
    let good = arguments(100, "echo", RECIPE);
    let first = function.call(&request(&library, true, &good, b"abc")).expect("a reply");
    let small = |arguments: &[u8]| request(&library, false, arguments, b"abc");
    let mut spoiled = vec![
        small(b""),
        small(&good[..9]),
        small(&good[..13]),
        small(&arguments(100, "nothing", RECIPE)),
        small(&arguments(100, &"x".repeat(1025), RECIPE)),
        small(&[&good[..8], &[1, 0, 0xff][..]].concat()),
        small(&arguments(u64::MAX - 1, "echo", RECIPE)),
        // `u64::MAX` means as much room as the input has, but the input is no result of another task.
        small(&arguments(u64::MAX, "echo", RECIPE)),
        request(b"\x7fELF no library", true, &good, b"abc"),
        request(b"no library", true, &good, b"abc"),
    ];
    for (at, byte) in [
        (1, 1),
        (1, 2),
        (1, 64),
        (2, 0),
        (2, 2),
        (3, 255),
        (24, 200),
        (32, 200),
        (39, 1),
    ] {
        let mut request = small(&good);
        request[at] = byte;
        spoiled.push(request);
    }
    let mut forged = request(&library, true, &good, b"abc");
    forged[8] ^= 1;
    spoiled.push(forged);
    for request in spoiled {
        let reply = function.call(&request).expect("a reply");
        let (head, text) = (&request[..24.min(request.len())], String::from_utf8_lossy(&reply[8..]));
        assert_eq!(reply[0], REFUSED, "{head:02x?} was answered {text}");
    }
    let again = function.call(&request(&library, false, &good, b"abc"));
    assert_eq!(again.expect("a reply"), first, "the same process serves on");
}
