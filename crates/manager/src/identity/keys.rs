//! Keys that this manager makes: `hlk_ID_SECRET`. The secret is 256 random bits, so its hash reveals nothing and
//! needs neither salt nor a slow function.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hotlease_store::KeyRecord;
use hotlease_wire::Rejection;

/// Prefix of keys. The prefix identifies a key that is found in a file.
pub(super) const PREFIX: &str = "hlk_";
const ID_DIGITS: usize = 16;
const SECRET_BYTES: usize = 32;

/// Newly made key.
pub(crate) struct NewKey {
    /// Identifier: 16 hexadecimal digits.
    pub id: String,
    /// The whole key, as its bearer sends it. It is not stored.
    pub secret: String,
    /// Hash of the secret part.
    pub hash: String,
}

/// Makes a key.
pub(crate) fn make() -> NewKey {
    let id = format!("{:016x}", rand::random::<u64>());
    let secret: [u8; SECRET_BYTES] = rand::random();
    NewKey {
        secret: format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret)),
        hash: blake3::hash(&secret).to_hex().to_string(),
        id,
    }
}

/// Splits a text that may be a key into identifier and secret.
fn parse(key: &str) -> Option<(&str, [u8; SECRET_BYTES])> {
    let (id, secret) = key.strip_prefix(PREFIX)?.split_once('_')?;
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let secret = URL_SAFE_NO_PAD.decode(secret).ok()?;
    Some((is_id.then_some(id)?, secret.try_into().ok()?))
}

/// Checks a key against the record that `known` finds. The error does not say which part of the key is wrong.
pub(super) fn check(
    key: &str,
    now_ms: u64,
    known: impl FnOnce(&str) -> Option<KeyRecord>,
) -> Result<KeyRecord, Rejection> {
    let refused = |why: &str| Rejection::NotAuthenticated { why: why.into() };
    let unknown = || refused("the key is not known here");
    let (id, secret) = parse(key).ok_or_else(unknown)?;
    let record = known(id).ok_or_else(unknown)?;
    let hash = blake3::Hash::from_hex(&record.hash).map_err(|_| unknown())?;
    // Compared in constant time.
    if blake3::hash(&secret) != hash {
        return Err(unknown());
    }
    check_valid(&record, now_ms)?;
    Ok(record)
}

/// Fails if a key is no longer valid. Also called for sessions that the key opened.
pub(super) fn check_valid(record: &KeyRecord, now_ms: u64) -> Result<(), Rejection> {
    let refused = |why: &str| Err(Rejection::NotAuthenticated { why: why.into() });
    if record.revoked_ms.is_some() {
        return refused("the key was revoked");
    }
    if record.expires_ms.is_some_and(|expires| expires <= now_ms) {
        return refused("the key has expired");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_store::Position;

    fn record(key: &NewKey) -> KeyRecord {
        KeyRecord {
            id: key.id.clone(),
            tenant: "alice".into(),
            position: Position::User,
            hash: key.hash.clone(),
            label: String::new(),
            created_ms: 0,
            expires_ms: Some(100),
            revoked_ms: None,
            used_ms: None,
        }
    }

    #[test]
    fn a_key_opens_until_it_expires_or_is_revoked() {
        let key = make();
        let known = record(&key);
        let check =
            |text: &str, now_ms, known: &KeyRecord| check(text, now_ms, |id| (id == known.id).then(|| known.clone()));
        assert_eq!(check(&key.secret, 99, &known), Ok(known.clone()));
        assert!(check(&key.secret, 100, &known).is_err(), "expired and taken");
        let revoked = KeyRecord {
            revoked_ms: Some(1),
            ..known.clone()
        };
        assert!(check(&key.secret, 1, &revoked).is_err(), "revoked and taken");
        let other = make();
        let mixed = other.secret.replace(&other.id, &key.id);
        assert!(check(&mixed, 1, &known).is_err(), "another key's secret was taken");
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_refused() {
        let key = make();
        let known = record(&key);
        let check = |text: &str| check(text, 1, |id| (id == known.id).then(|| known.clone()));
        for at in 0..key.secret.len() {
            assert!(check(&key.secret[..at]).is_err(), "cut to {at} bytes and taken");
            for replacement in ['A', 'b', '0', '-', '_', ' '] {
                let mut changed: Vec<char> = key.secret.chars().collect();
                if changed[at] != replacement {
                    changed[at] = replacement;
                    let changed: String = changed.into_iter().collect();
                    assert!(
                        check(&changed).is_err(),
                        "byte {at} changed to {replacement:?} and taken"
                    );
                }
            }
        }
        assert!(check(&format!("{}A", key.secret)).is_err(), "longer and taken");
    }

    #[test]
    fn the_hash_is_not_the_secret() {
        let key = make();
        assert!(!key.secret.contains(&key.hash) && !key.hash.contains(&key.secret[21..]));
    }
}
