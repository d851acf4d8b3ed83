//! The site's keys of a store, in a file in the format of AWS's tools.
//!
//! ```text
//! [default]
//! aws_access_key_id = ...
//! aws_secret_access_key = ...
//! ```

use hotlease_net::identity::exposure;
use hotlease_s3::SigningKeys;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Largest number of bytes of a file of secrets.
const BYTES_MAX: u64 = 64 << 10;

/// Reads a file that other users must not be able to read.
pub(super) fn read_private(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let file = File::open(path).map_err(unreadable)?;
    // Checks the open file, because another file could take this path after a check of the path.
    if let Some(why) = exposure(&file.metadata().map_err(unreadable)?) {
        return Err(format!(
            "{} is not safe: {why}; `chmod 600` it, and replace the keys if others may have read them",
            path.display()
        ));
    }
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(format!("{} has more than {BYTES_MAX} bytes", path.display())),
        false => Ok(text),
    }
}

/// The keys of a profile. The file is read for each request, so that replaced keys are used at once.
pub(super) fn keys(path: &Path, profile: &str) -> Result<SigningKeys, String> {
    let text = read_private(path)?;
    let value = |name: &str| {
        let mut is_ours = false;
        let mut found = None;
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                is_ours = section.trim() == profile;
            } else if let Some((key, value)) = line.split_once('=')
                && is_ours
                && key.trim() == name
            {
                found = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
            }
        }
        found
    };
    let needed =
        |name: &str| value(name).ok_or_else(|| format!("{} has no {name} in its section [{profile}]", path.display()));
    Ok(SigningKeys {
        id: needed("aws_access_key_id")?,
        secret: needed("aws_secret_access_key")?,
        token: value("aws_session_token"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_those_of_the_profile_in_a_file_that_is_ours_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("credentials");
        let text = "# of the site\n[other]\naws_access_key_id = A\naws_secret_access_key = B\n[ default ]\n\
                    aws_access_key_id=C\naws_secret_access_key = D=/+ \naws_session_token = E\n[empty]\naws_access_key_id =\n";
        std::fs::write(&path, text).expect("written");
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
        mode(0o600);
        let of = |profile: &str| keys(&path, profile);
        let of_default = of("default").expect("good");
        assert_eq!((&*of_default.id, &*of_default.secret), ("C", "D=/+"));
        assert_eq!(of_default.token.as_deref(), Some("E"));
        let of_other = of("other").expect("good");
        assert_eq!((&*of_other.id, of_other.token), ("A", None));
        for bad in ["empty", "missing"] {
            let error = of(bad).expect_err(bad);
            assert!(error.contains("aws_access_key_id") && error.contains(bad), "{error}");
        }
        mode(0o640);
        let error = of("default").expect_err("others may read it");
        assert!(error.contains("others can access it"), "{error}");
    }
}
