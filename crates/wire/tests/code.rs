//! Exports of function libraries, with any symbol table.

#[path = "decoders/library.rs"]
mod library;

use hotlease_wire::code::{CodeError, ExportedFunction, Interface, exports, functions};
use hotlease_wire::limits::{FUNCTION_NAME_BYTES_MAX, FUNCTIONS_MAX};
use library::{Symbol, library};
use std::time::{Duration, Instant};

fn names(functions: &[ExportedFunction]) -> Vec<&str> {
    functions.iter().map(|function| function.name.as_str()).collect()
}

#[test]
fn exported_functions_are_sorted_and_marked() {
    let found = functions(&library(&[
        Symbol::function("_init"),
        Symbol::undefined("malloc"),
        Symbol::data("hotlease_context_zeta"),
        Symbol::function("zeta"),
        Symbol::function("alpha"),
        Symbol::data("hotlease_idempotent_alpha"),
        Symbol::data("hotlease_idempotent_absent"),
    ]))
    .unwrap();
    assert_eq!(names(&found), ["alpha", "zeta"]);
    assert!(found[0].idempotent && found[0].interface == Interface::Plain);
    assert!(!found[1].idempotent && found[1].interface == Interface::Context);
}

#[test]
fn functions_for_the_state_are_one_pair_and_cannot_be_invoked() {
    let with = |hooks: &[&str]| {
        let all = std::iter::once(&"count").chain(hooks);
        let symbols: Vec<_> = all.map(|name| Symbol::function(name)).collect();
        exports(&library(&symbols))
    };
    let (save, restore) = ("hotlease_state_save_words", "hotlease_state_restore_words");
    let found = with(&[save, restore]).unwrap();
    assert_eq!(names(&found.functions), ["count"]);
    assert_eq!(found.state.as_deref(), Some("words"));
    assert_eq!(with(&[]).unwrap().state, None);
    for wrong in [
        &[save][..],
        &[restore],
        &[save, "hotlease_state_restore_others"],
        &[save, restore, "hotlease_state_save_others"],
        &["hotlease_state_save_", "hotlease_state_restore_"],
    ] {
        let error = with(wrong).unwrap_err();
        assert!(matches!(error, CodeError::State { .. }), "{wrong:?}: {error}");
    }
    let error = with(&[save]).unwrap_err().to_string();
    assert!(
        error.contains("HOTLEASE_STATE_SAVE(words) and HOTLEASE_STATE_RESTORE()"),
        "{error}"
    );
}

#[test]
fn names_and_counts_stop_at_their_limits() {
    let longest = "f".repeat(FUNCTION_NAME_BYTES_MAX);
    let over = "g".repeat(FUNCTION_NAME_BYTES_MAX + 1);
    let found = functions(&library(&[Symbol::function(&longest), Symbol::function(&over)])).unwrap();
    assert_eq!(names(&found), [longest], "a name over the limit is not offered");

    let many: Vec<_> = (0..=FUNCTIONS_MAX)
        .map(|n| Symbol::function(&format!("f{n}")))
        .collect();
    assert_eq!(functions(&library(&many[1..])).unwrap().len(), FUNCTIONS_MAX);
    assert_eq!(functions(&library(&many)), Err(CodeError::TooManyFunctions));
}

#[test]
fn a_library_without_exports_is_reported() {
    assert_eq!(functions(&library(&[])), Err(CodeError::NoFunctions));
    assert_eq!(
        functions(&library(&[Symbol::data("table")])),
        Err(CodeError::NoFunctions)
    );
}

#[test]
fn bytes_need_no_alignment() {
    let mut bytes = vec![0];
    bytes.extend(library(&[Symbol::function("hello")]));
    assert_eq!(names(&functions(&bytes[1..]).unwrap()), ["hello"]);
}

/// Each of many symbols names the same megabytes: reading each name to its end would take hours.
#[test]
fn listing_takes_time_in_proportion_to_the_file() {
    let mut symbols: Vec<_> = (0..200_000).map(|_| Symbol::data("")).collect();
    let at = 1 + symbols.len() as u32;
    for symbol in &mut symbols {
        symbol.name_offset = Some(at);
    }
    symbols.push(Symbol::data(&"x".repeat(16 << 20)));
    let hostile = library(&symbols);
    let before = Instant::now();
    assert!(functions(&hostile).is_err());
    let took = before.elapsed();
    assert!(took < Duration::from_secs(5), "{} bytes took {took:?}", hostile.len());
}
