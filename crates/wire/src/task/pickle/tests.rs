//! Tests of the check of pickles.

use super::*;

const HEAD: [u8; 2] = [0x80, 4];

fn checked(operations: &[u8], uses: u8) -> Result<(), PickleRefusal<String>> {
    check(&[&HEAD, operations].concat(), |module, name| match module {
        "m" => Ok(uses),
        other => Err(format!("{other}.{name}")),
    })
}

fn refusal(operations: &[u8], uses: u8) -> &'static str {
    match checked(operations, uses) {
        Err(PickleRefusal::Operation(_, why)) => why,
        other => panic!("not refused as an operation: {other:?}"),
    }
}

/// `m.c`
const NAME: &[u8] = b"\x8c\x01m\x8c\x01c\x93";

fn with_name(rest: &[u8]) -> Vec<u8> {
    [NAME, rest].concat()
}

#[test]
fn an_object_is_made_and_filled_as_its_name_admits() {
    let made = with_name(b")R}\x8c\x01aK\x01sb.");
    assert_eq!(checked(&made, uses::OF_CLASS), Ok(()));
    assert_eq!(refusal(&made, uses::VALUE), "it calls a class that is only a value");
    assert!(refusal(&made, uses::CALL).contains("has none"));
    for again in [&b")R\x94}bNb."[..], b")R\x94}bK\x01a.", b")R\x94h\x00}b0}b."] {
        assert!(checked(&with_name(again), uses::OF_CLASS).is_err(), "{again:?}");
    }
    assert!(refusal(&with_name(b"."), uses::CALL).contains("a function"));
    assert!(refusal(&with_name(b")RK\x01a."), uses::CALL).contains("takes none"));
}

#[test]
fn other_names_are_refused_by_the_receiver() {
    let refused = checked(b"\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", uses::OF_CLASS);
    assert_eq!(refused, Err(PickleRefusal::Name("os.system".into())));
}

#[test]
fn a_class_is_not_changed_and_a_value_is_not_called() {
    let every = uses::OF_CLASS;
    assert!(refusal(&with_name(b"N}\x8c\x01aK\x01s\x86b."), every).contains("did not make"));
    assert!(refusal(&with_name(b"\x8c\x01aK\x01s."), every).contains("takes none"));
    assert_eq!(refusal(&with_name(b")R)R."), every), "it calls a value");
    // By a class that a call returns.
    let class = uses::CALL | uses::CLASS;
    assert_eq!(checked(&with_name(b")R)R."), class), Ok(()));
    assert!(refusal(&with_name(b")R}b."), class).contains("did not make"));
}

#[test]
fn special_attributes_of_exceptions_are_refused_whichever_way_they_get_into_the_state() {
    let uses = uses::OF_CLASS | uses::USUAL_STATE;
    assert_eq!(checked(&with_name(b")R}\x8c\x09__notes__]sb."), uses), Ok(()));
    assert!(refusal(&with_name(b")R}\x8c\x09__cause__Nsb."), uses).contains("special"));
    // The dict is changed by another reference to it.
    let aliased = with_name(b")R}\x94h\x00\x8c\x09__cause__Ns0b.");
    assert!(refusal(&aliased, uses).contains("special"));
}

#[test]
fn keys_that_would_exhaust_the_stack_are_refused() {
    let nested = [&b"})"[..], &[0x85_u8; 20_000], b"Ns."].concat();
    assert_eq!(refusal(&nested, 0), "a key has too many parts");
    // Each level contains the one below it twice.
    let mut doubled = b"\x8f()".to_vec();
    for level in 0..40_u8 {
        doubled.extend([0x94, b'h', level, 0x86]);
    }
    doubled.extend(b"\x90.");
    assert_eq!(refusal(&doubled, 0), "a key has too many parts");
    assert_eq!(checked(b"}K\x01K\x02\x86Ns.", 0), Ok(()));
}

#[test]
fn operations_that_results_do_not_need_are_refused() {
    // Extensions, persistent objects, names in the old forms, memo entries at any place.
    for operations in [
        &b"\x82\x01."[..],
        b"Pid\n.",
        b"K\x01Q.",
        b"cos\nsystem\n.",
        b"(ios\nsystem\n.",
        b"Nr\xff\xff\xff\x7f.",
        b"Nq\x00.",
        b"Vtext\n.",
        b"I1\n.",
    ] {
        assert_eq!(
            refusal(operations, uses::OF_CLASS),
            "results do not need this operation"
        );
    }
    assert!(check(b"\x80\x03N.", |_, _| Ok::<_, ()>(0)).is_err());
}

#[test]
fn what_is_announced_is_there() {
    for operations in [
        &b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."[..],
        b"\x95\xff\x00\x00\x00\x00\x00\x00\x00N.",
        b"N",
        b"h\x00.",
        b"(0.",
        b"(NN.",
    ] {
        assert!(checked(operations, 0).is_err(), "{operations:?}");
    }
    assert!(refusal(b"N.N", 0).contains("more follows"));
}
