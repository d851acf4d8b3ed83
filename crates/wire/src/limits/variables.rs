//! Environment variables that a lease gives its workers: the names and the number that a request may have.

use super::{VARIABLES_BYTES_MAX, VARIABLES_MAX};

/// Prefix of the variables that hotlease itself sets in workers, which a lease cannot set.
const OWN_PREFIX: &str = "HOTLEASE_";

/// Checks the variables of a request, as pairs of name and value.
///
/// # Errors
/// Text that names the variable, or the limit.
pub fn check<'a>(variables: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<(), String> {
    let (mut count, mut bytes) = (0, 0);
    for (name, value) in variables {
        count += 1;
        // With "=" and the final zero, as in the memory of a process.
        bytes += name.len() + value.len() + 2;
        if count > VARIABLES_MAX || bytes > VARIABLES_BYTES_MAX {
            return Err(format!(
                "variables must be at most {VARIABLES_MAX}, with at most {} KiB of names and values",
                VARIABLES_BYTES_MAX >> 10
            ));
        }
        if !is_name(name.as_bytes()) {
            return Err(format!(
                "variables: {name:?} is not a name of letters, digits and '_' that begins with no digit"
            ));
        }
        if name.starts_with(OWN_PREFIX) {
            return Err(format!(
                "variables: {name} begins with {OWN_PREFIX}, as those do that hotlease sets itself"
            ));
        }
        if value.contains('\0') {
            return Err(format!(
                "variables: the value of {name} has a zero byte, which ends a text"
            ));
        }
    }
    Ok(())
}

/// Whether shells and programs accept `name` as the name of a variable.
pub fn is_name(name: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    name.first().is_some_and(is_letter) && name.iter().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn checked(pairs: &[(&str, &str)]) -> Result<(), String> {
        let map: BTreeMap<String, String> = pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        check(&map)
    }

    #[test]
    fn valid_variables_are_accepted() {
        assert_eq!(checked(&[]), Ok(()));
        let values = [
            ("A", ""),
            ("_b2", "a=b\n$HOME"),
            ("LD_PRELOAD", "/data/x.so"),
            ("Hotlease", "1"),
        ];
        assert_eq!(checked(&values), Ok(()));
    }

    #[test]
    fn names_that_cannot_be_and_those_of_hotlease_are_refused_by_name() {
        for name in [
            "",
            "A=B",
            "A\0",
            "1A",
            "a b",
            "a.b",
            "Ä",
            "HOTLEASE_",
            "HOTLEASE_LIBFABRIC",
        ] {
            let why = checked(&[(name, "1")]).expect_err("refused");
            assert!(
                why.contains("variables") && why.contains(&name.escape_debug().to_string()),
                "{why}"
            );
        }
        let why = checked(&[("A", "a\0b")]).expect_err("refused");
        assert!(why.contains("value of A"), "{why}");
    }

    #[test]
    fn their_number_and_size_have_a_limit() {
        let many =
            |count: usize| -> BTreeMap<String, String> { (0..count).map(|n| (format!("V{n}"), "1".into())).collect() };
        assert_eq!(check(&many(VARIABLES_MAX)), Ok(()));
        assert!(check(&many(VARIABLES_MAX + 1)).is_err(), "one more than the limit");
        let value = |bytes: usize| checked(&[("A", &"x".repeat(bytes))]);
        assert_eq!(value(VARIABLES_BYTES_MAX - 3), Ok(()));
        assert!(value(VARIABLES_BYTES_MAX - 2).expect_err("too long").contains("64 KiB"));
    }
}
