//! Places of object storage that a lease asks for, or that a site grants: `s3://BUCKET[/PREFIX][:ro|:rw]`.
//!
//! ```
//! use hotlease_wire::storage::StoragePlace;
//! let results: StoragePlace = "s3://results/ann:rw".parse()?;
//! assert!(results.covers("results", "ann/run 7") && !results.covers("results", "annette/run 7"));
//! # Ok::<(), hotlease_wire::storage::StoragePlaceError>(())
//! ```

use crate::limits::PATH_BYTES_MAX;
use std::fmt;
use std::str::FromStr;

/// Length of a bucket's name, by S3's rules.
const BUCKET_BYTES: std::ops::RangeInclusive<usize> = 3..=63;

/// A bucket, or the keys below a prefix, which is like a folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoragePlace {
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix without a slash at its end; empty for the whole bucket.
    pub prefix: String,
    /// Whether objects may be written and removed there.
    pub writable: bool,
}

/// A text that is no [`StoragePlace`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "storage is s3://BUCKET[/PREFIX][:ro|:rw], with a bucket of lower-case letters, digits, `-` and `.`, unlike {text:?}: {why}"
)]
pub struct StoragePlaceError {
    text: String,
    why: &'static str,
}

impl FromStr for StoragePlace {
    type Err = StoragePlaceError;

    fn from_str(text: &str) -> Result<Self, StoragePlaceError> {
        let bad = |why| StoragePlaceError {
            text: text.chars().take(PATH_BYTES_MAX).collect(),
            why,
        };
        let (place, writable) = match (text.strip_suffix(":rw"), text.strip_suffix(":ro")) {
            (Some(place), _) => (place, true),
            (None, Some(place)) => (place, false),
            (None, None) => (text, false),
        };
        let place = place
            .strip_prefix("s3://")
            .ok_or_else(|| bad("it does not begin with s3://"))?;
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !is_bucket(bucket) {
            return Err(bad("that is no name of a bucket"));
        }
        if !prefix.is_empty() && !is_key(prefix) {
            return Err(bad(
                "its prefix has an empty part, `.`, `..` or a control character, or is too long",
            ));
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            writable,
        })
    }
}

impl fmt::Display for StoragePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        f.write_str(if self.writable { ":rw" } else { ":ro" })
    }
}

impl StoragePlace {
    /// Whether the place covers this object: the object whose name is the prefix, and all objects below it.
    pub fn covers(&self, bucket: &str, key: &str) -> bool {
        self.bucket == bucket && (self.prefix.is_empty() || key == self.prefix || self.is_above(key))
    }

    /// Whether the place covers every key with this prefix.
    pub fn covers_all(&self, bucket: &str, prefix: &str) -> bool {
        self.bucket == bucket && (self.prefix.is_empty() || self.is_above(prefix))
    }

    /// Whether this place permits everything that `other` permits.
    pub fn contains(&self, other: &Self) -> bool {
        (self.writable || !other.writable) && self.covers(&other.bucket, &other.prefix)
    }

    fn is_above(&self, key: &str) -> bool {
        key.strip_prefix(&*self.prefix)
            .is_some_and(|rest| rest.starts_with('/'))
    }
}

/// Whether the name is valid for a bucket.
pub fn is_bucket(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [name.bytes().next(), name.bytes().next_back()];
    BUCKET_BYTES.contains(&name.len())
        && name.bytes().all(|byte| is_letter(byte) || byte == b'-' || byte == b'.')
        && ends.into_iter().flatten().all(is_letter)
        && !name.contains("..")
}

/// Whether the key is valid for an object even in a store that keeps keys as paths: no part of it is empty, `.` or
/// `..`. It may end in a slash.
pub fn is_key(key: &str) -> bool {
    let parts = key.strip_suffix('/').unwrap_or(key);
    !parts.is_empty()
        && key.len() <= PATH_BYTES_MAX
        && !key.chars().any(char::is_control)
        && parts.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> StoragePlace {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn places_are_read_and_written_alike() {
        for (text, written) in [
            ("s3://data", "s3://data:ro"),
            ("s3://data/", "s3://data:ro"),
            ("s3://data:rw", "s3://data:rw"),
            ("s3://data/a/b:ro", "s3://data/a/b:ro"),
            ("s3://data/a b/:rw", "s3://data/a b:rw"),
            ("s3://data/uid:7:rw", "s3://data/uid:7:rw"),
        ] {
            let read = place(text);
            assert_eq!(read.to_string(), written);
            assert_eq!(place(written), read);
        }
        for bad in [
            "",
            "data",
            "s3://",
            "s3:///a",
            "s3://Data",
            "s3://da",
            "s3://-data",
            "s3://da..ta",
            "s3://data/../x",
            "s3://data//a",
            "s3://data/./a",
            "s3://data/a\0b",
            "s3://data?acl",
            "http://data/a",
        ] {
            assert!(bad.parse::<StoragePlace>().is_err(), "{bad:?} was taken");
        }
        assert!(
            format!("s3://data/{}", "x".repeat(1025))
                .parse::<StoragePlace>()
                .is_err()
        );
    }

    #[test]
    fn a_place_is_a_folder_and_not_what_is_called_alike() {
        let ann = place("s3://data/ann:rw");
        for (key, is_in) in [
            ("ann/run", true),
            ("ann", true),
            ("ann/", true),
            ("annette/run", false),
            ("", false),
            ("bob/ann/run", false),
        ] {
            assert_eq!(ann.covers("data", key), is_in, "{key:?}");
        }
        assert!(!ann.covers("other", "ann/run"));
        assert!(ann.covers_all("data", "ann/") && ann.covers_all("data", "ann/r"));
        assert!(!ann.covers_all("data", "ann") && !ann.covers_all("data", ""));
        assert!(place("s3://data").covers_all("data", ""));
        for (granted, asked, is_in) in [
            ("s3://data/ann:rw", "s3://data/ann/run:rw", true),
            ("s3://data/ann:rw", "s3://data/ann", true),
            ("s3://data/ann", "s3://data/ann:rw", false),
            ("s3://data/ann:rw", "s3://data:rw", false),
            ("s3://data", "s3://data/ann", true),
            ("s3://data", "s3://other/ann", false),
        ] {
            assert_eq!(place(granted).contains(&place(asked)), is_in, "{granted} {asked}");
        }
    }
}
