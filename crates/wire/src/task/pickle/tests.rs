//! Tests of the check of pickles.

use super::*;

const HEAD: [u8; 2] = [0x80, 4];

fn checked(operations: &[u8], uses: u8) -> Result<(), PickleRefusal<String>> {
    predictable_keys(operations, uses).map(drop)
}

fn predictable_keys(operations: &[u8], uses: u8) -> Result<u64, PickleRefusal<String>> {
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
    // A class that a call returns may be called, too.
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
    // Three more ways: the key is an object that is a text; the dict is an object; the dict is in a tuple before it
    // gets the key.
    let object = with_name(b")R\x94}h\x00Nsb.");
    assert!(refusal(&object, uses).contains("special"));
    let dict = with_name(b")R\x8c\x01m\x8c\x01d\x93)R\x8c\x09__cause__Nsb.");
    assert!(refusal(&dict, uses | uses::ITEMS).contains("special"));
    let late = with_name(b")RN}\x94\x86\x940h\x00\x8c\x09__cause__Ns0h\x01b.");
    assert!(refusal(&late, uses).contains("special"));
    let usual = with_name(b")RN}\x8c\x01aNs\x86b.");
    assert_eq!(checked(&usual, uses), Ok(()));
}

/// Pickle of `count` objects; `place` puts each object directly into the next. Its value is the last object.
fn chain(count: u32, place: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut made = b"N\x940".to_vec();
    for number in 0..count {
        let before = [&b"j"[..], &number.to_le_bytes()].concat();
        made.extend([NAME, &place(&before), b"\x940"].concat());
    }
    [&made[..], b"j", &count.to_le_bytes(), b"."].concat()
}

/// Opcodes that put an object into the next object.
type Nesting = fn(&[u8]) -> Vec<u8>;

#[test]
fn objects_that_are_freed_by_recursion_are_not_deep_in_each_other() {
    let frail = uses::OF_CLASS | uses::FRAIL;
    let places: [Nesting; 4] = [
        |before| [before, b"\x85R"].concat(),
        |before| [b")R}\x8c\x01a", before, b"sb"].concat(),
        |before| [b")R", before, b"a"].concat(),
        |before| [b")}\x8c\x01a", before, b"s\x92"].concat(),
    ];
    for (number, place) in places.into_iter().enumerate() {
        assert_eq!(checked(&chain(100, place), frail), Ok(()), "place {number}");
        assert!(
            refusal(&chain(1000, place), frail).contains("too deep"),
            "place {number}"
        );
        assert_eq!(
            checked(&chain(1000, place), uses::OF_CLASS),
            Ok(()),
            "objects of Python classes are no danger"
        );
    }
    // Python frees lists with a limit, so objects in lists are no danger.
    assert_eq!(
        checked(&chain(1000, |before| [b"]", before, b"a\x85R"].concat()), frail),
        Ok(())
    );
    // Objects are put into each other from the outermost to the innermost: each is already in another object when it
    // gets its own part.
    let mut late = Vec::new();
    for _ in 0..1000 {
        late.extend(with_name(b")R\x940"));
    }
    for number in 0..999_u32 {
        let (outer, inner) = (number.to_le_bytes(), (number + 1).to_le_bytes());
        late.extend([&b"j"[..], &outer, b"j", &inner, b"a0"].concat());
    }
    late.extend(b"N.");
    assert!(refusal(&late, frail).contains("too deep"));
    // A cycle.
    assert_eq!(checked(&with_name(b")R\x94h\x00a."), frail), Ok(()));
}

#[test]
fn keys_are_hashed_in_proportion_to_the_pickle() {
    let key = [&b"("[..], &b"N".repeat(5000), b"t\x940"].concat();
    let with_keys = |count| [&key[..], b"}(", &b"h\x00N".repeat(count), b"u."].concat();
    assert_eq!(checked(&with_keys(100), 0), Ok(()));
    assert_eq!(refusal(&with_keys(10_000), 0), "a key has too many parts");
}

#[test]
fn keys_whose_hashes_a_sender_can_choose_are_counted() {
    for (operations, count) in [
        (&b"](K\x01K\x02e."[..], 0),
        (b"}(\x8c\x01aK\x01\x8c\x01bK\x02u.", 0),
        (b"}(K\x01\x8c\x01aK\x02\x8c\x01bu.", 2),
        (b"}K\x01Ns.", 1),
        (b"}\x8c\x01a\x85Ns.", 1),
        (b"\x8f(K\x01K\x02\x8c\x01a\x90.", 2),
        (b"(K\x01(K\x02K\x03\x91\x91.", 4),
    ] {
        assert_eq!(predictable_keys(operations, 0), Ok(count), "{operations:?}");
    }
    let items = with_name(b")R(K\x01NK\x02Nu.");
    assert_eq!(
        predictable_keys(&items, uses::OF_CLASS),
        Ok(2),
        "of an object that takes items"
    );
}

#[test]
fn keys_that_would_exhaust_the_stack_are_refused() {
    let nested = [&b"})"[..], &[0x85_u8; 20_000], b"Ns."].concat();
    assert_eq!(refusal(&nested, 0), "a key has too many parts");
    // Each level contains the level below it twice.
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
fn announced_lengths_must_be_present() {
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
