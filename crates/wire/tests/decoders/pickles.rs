//! Check of pickles from sandboxes: promises for any bytes.

use hotlease_wire::task::pickle::{PickleRefusal, check, uses};

/// A receiver that admits the names of one module for each use. The error is the module.
fn look(module: &str, _name: &str) -> Result<u8, String> {
    match module {
        "value" => Ok(uses::VALUE),
        "make" => Ok(uses::CALL),
        "class" => Ok(uses::OF_CLASS),
        "exception" => Ok(uses::OF_CLASS | uses::USUAL_STATE),
        "own" => Ok(uses::CALL | uses::CLASS),
        _ => Err(module.to_owned()),
    }
}

pub fn pickle(bytes: &[u8]) -> bool {
    match check(bytes, look) {
        Ok(keys) => {
            assert!(keys <= bytes.len() as u64, "a key has a byte at least");
            assert!(matches!(bytes, [0x80, 4 | 5, .., b'.']));
            assert!(
                check(&bytes[..bytes.len() - 1], look).is_err(),
                "it has a value before its end"
            );
            assert!(
                check(&[bytes, b"N"].concat(), look).is_err(),
                "something follows its end"
            );
            true
        }
        Err(PickleRefusal::Name(module)) => {
            assert!(look(&module, "").is_err());
            false
        }
        Err(PickleRefusal::Operation(at, why)) => {
            assert!(at <= bytes.len() && !why.is_empty());
            false
        }
    }
}

pub fn pickle_seeds() -> Vec<Vec<u8>> {
    let name = |module: &str| {
        let mut named = vec![0x8c, module.len() as u8];
        named.extend(module.as_bytes());
        named.extend(b"\x94\x8c\x01x\x94\x93\x94");
        named
    };
    let of = |operations: &[&[u8]]| [&[&b"\x80\x05"[..]], operations].concat().concat();
    vec![
        of(&[b"N."]),
        of(&[b"\x95\x06\x00\x00\x00\x00\x00\x00\x00]\x94(\x88\x89e."]),
        of(&[b"]\x94(\x88K\x01M\x02\x01J\x01\x02\x03\x04\x8a\x01\x05G\x00\x00\x00\x00\x00\x00\x00\x00h\x00e."]),
        of(&[b"}\x94(\x8c\x01a\x94C\x01b\x8c\x01c\x94K\x01K\x02\x86\x94u."]),
        of(&[b"\x8f\x94((K\x01K\x02\x91\x94K\x03\x90."]),
        of(&[b"(NN\x97\x98\x96\x01\x00\x00\x00\x00\x00\x00\x00at\x94."]),
        of(&[&name("value"), b"."]),
        of(&[&name("make"), b"K\x01\x85\x94R\x94."]),
        of(&[&name("class"), b")\x81\x94}\x94\x8c\x01a\x94K\x01sb."]),
        of(&[&name("class"), b")R\x94(K\x01K\x02e(\x8c\x01a\x94Nu."]),
        of(&[
            &name("exception"),
            b"\x8c\x01t\x94\x85\x94R\x94}\x94\x8c\x09__notes__\x94]\x94sb.",
        ]),
        of(&[&name("own"), b"\x8c\x01t\x94\x85\x94R\x94)}\x94\x92\x94."]),
    ]
}
