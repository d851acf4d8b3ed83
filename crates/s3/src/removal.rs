//! Body of a request that removes several objects at once.
//!
//! The body is passed on to the store byte for byte. So only the plainest form is accepted, which all XML parsers
//! understand alike.
//!
//! ```text
//! [<?xml ...?>] <Delete [xmlns="..."]> (<Object><Key>TEXT</Key></Object> | <Quiet>BOOL</Quiet>)* </Delete>
//! ```

use crate::fault::Fault;

/// Longest body, bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Limit of objects in a body; S3 has the same limit.
const OBJECTS_MAX: usize = 1000;

/// Returns the keys that the body names.
pub fn parse_removal(body: &[u8]) -> Result<Vec<String>, Fault> {
    let text = std::str::from_utf8(body)
        .ok()
        .filter(|text| text.len() <= BODY_BYTES_MAX);
    let keys = text.and_then(keys).ok_or_else(|| {
        Fault::new(
            400,
            "MalformedXML",
            format!(
                "what is to be removed at once is named as <Delete><Object><Key>...</Key></Object>...</Delete> here, without versions and \
                 conditions, in at most {BODY_BYTES_MAX} bytes"
            ),
        )
    })?;
    match keys.len() {
        0 | 1..=OBJECTS_MAX => Ok(keys),
        many => Err(Fault::new(
            400,
            "MalformedXML",
            format!("{many} objects are to be removed at once, of {OBJECTS_MAX}"),
        )),
    }
}

fn keys(text: &str) -> Option<Vec<String>> {
    let mut rest = text.trim_start();
    if let Some(after) = rest.strip_prefix("<?xml ") {
        let (declared, after) = after.split_once("?>")?;
        if !is_plain_declaration(declared) {
            return None;
        }
        rest = after.trim_start();
    }
    rest = match rest.strip_prefix("<Delete>") {
        Some(after) => after,
        None => {
            let after = rest.strip_prefix("<Delete xmlns=\"")?;
            let (space, after) = after.split_once("\">")?;
            if space.contains(['<', '>', '"', '&']) {
                return None;
            }
            after
        }
    };
    let mut keys = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix("<Object>") {
            let after = after.trim_start().strip_prefix("<Key>")?;
            let (key, after) = after.split_once('<')?;
            keys.push(unescape_xml(key)?);
            rest = after.strip_prefix("/Key>")?.trim_start().strip_prefix("</Object>")?;
        } else if let Some(after) = rest.strip_prefix("<Quiet>") {
            let (quiet, after) = after.split_once('<')?;
            if !matches!(quiet, "true" | "false") {
                return None;
            }
            rest = after.strip_prefix("/Quiet>")?;
        } else {
            let after = rest.strip_prefix("</Delete>")?;
            return after.trim_start().is_empty().then_some(keys);
        }
    }
}

/// Whether an XML declaration names version 1.0 and no encoding but UTF-8. Under another encoding, such as UTF-7, the
/// store could read other keys from the same bytes.
fn is_plain_declaration(declared: &str) -> bool {
    let declared = declared.replace('\'', "\"").to_ascii_lowercase();
    let mut words = declared.split_whitespace();
    let is_version = words.next() == Some("version=\"1.0\"");
    is_version && words.all(|word| matches!(word, "encoding=\"utf-8\"" | "standalone=\"yes\"" | "standalone=\"no\""))
}

/// Text with its XML entities replaced by their characters.
fn unescape_xml(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let (name, after) = after.split_once(';')?;
        plain.push(match name {
            "lt" => '<',
            "gt" => '>',
            "amp" => '&',
            "quot" => '"',
            "apos" => '\'',
            name => {
                let number = name.strip_prefix('#')?;
                let (digits, radix) = match number.strip_prefix('x') {
                    Some(digits) => (digits, 16),
                    None => (number, 10),
                };
                let are_digits = digits.chars().all(|digit| digit.is_digit(radix));
                let number = are_digits.then(|| u32::from_str_radix(digits, radix).ok())?;
                char::from_u32(number?)?
            }
        });
        rest = after;
    }
    plain.push_str(rest);
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_plainest_form_is_taken() {
        let named = |text: &str| parse_removal(text.as_bytes()).ok();
        let some = |keys: &[&str]| Some(keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>());
        for (text, keys) in [
            (
                "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Object><Key>a/b</Key></Object><Quiet>true</Quiet></Delete>",
                some(&["a/b"]),
            ),
            (
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Delete>\n <Object>\n <Key>a</Key> </Object><Object><Key>b&amp;&#x41;&#66;</Key></Object>\n</Delete>\n",
                some(&["a", "b&AB"]),
            ),
            (
                "<?xml version='1.0' encoding='utf-8' standalone='yes'?><Delete><Object><Key>a</Key></Object></Delete>",
                some(&["a"]),
            ),
            // Another encoding gives the same bytes another meaning: `+AC4-` is a dot in UTF-7.
            (
                "<?xml version=\"1.0\" encoding=\"UTF-7\"?><Delete><Object><Key>a/+AC4-+AC4-/b</Key></Object></Delete>",
                None,
            ),
            (
                "<?xml version=\"1.0\" encoding = \"UTF-7\"?><Delete><Object><Key>a</Key></Object></Delete>",
                None,
            ),
            ("<?xml version=\"1.1\"?><Delete></Delete>", None),
            ("<Delete></Delete>", some(&[])),
            (
                "<Delete><Object><Key>a</Key><VersionId>1</VersionId></Object></Delete>",
                None,
            ),
            (
                "<Delete><Object><VersionId>1</VersionId><Key>a</Key></Object></Delete>",
                None,
            ),
            ("<Delete><Object><Key>a<!-- x --></Key></Object></Delete>", None),
            ("<Delete><Object><Key><![CDATA[a]]></Key></Object></Delete>", None),
            ("<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>", None),
            ("<Delete><Object><Key x=\"1\">a</Key></Object></Delete>", None),
            (
                "<!DOCTYPE d [<!ENTITY k \"b\">]><Delete><Object><Key>&k;</Key></Object></Delete>",
                None,
            ),
            ("<Delete><Object><Key>&k;</Key></Object></Delete>", None),
            ("<Delete><Object><Key>a</Key></Object></Delete><Delete/>", None),
            ("<x:Delete><Object><Key>a</Key></Object></x:Delete>", None),
            ("", None),
        ] {
            assert_eq!(named(text), keys, "{text}");
        }
        assert_eq!(
            parse_removal(b"<Delete>\xff</Delete>").expect_err("no text").code,
            "MalformedXML"
        );
        let many = "<Object><Key>a</Key></Object>".repeat(1001);
        assert!(parse_removal(format!("<Delete>{many}</Delete>").as_bytes()).is_err());
    }
}
