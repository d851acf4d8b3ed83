//! Parameters of a PostgreSQL server: parameters of the client library, additional parameters of this program, and the
//! rules for both kinds.
//!
//! A server of this host is reached over its Unix socket, without a password. A server of another host is reached over
//! TCP, always with TLS, and its certificate must be valid for the host's name. Secrets must be in files, because a
//! command line with a password is visible to all users of the host.

use super::tls::{ClientFiles, Tls};
use crate::StoreError;
use postgres::Config;
use postgres::config::{Host, SslMode};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Parameters that the client library does not have. Names and meanings are taken from PostgreSQL's own programs.
const OWN: [&str; 4] = ["sslrootcert", "sslcert", "sslkey", "passfile"];
/// Values of `sslmode` with one meaning here: TLS, and a certificate that is checked.
const CHECKED: [&str; 3] = ["require", "verify-ca", "verify-full"];

pub(super) fn unusable(why: impl Into<String>) -> StoreError {
    StoreError::Unusable {
        path: PathBuf::from("PostgreSQL"),
        why: why.into(),
    }
}

/// Reads parameters like `host=/run/postgresql dbname=hotlease`, or a URL, `postgresql://hotlease@db.example/hotlease`.
pub(super) fn read(text: &str) -> Result<(Config, Option<Tls>), StoreError> {
    let (rest, own) = split(text)?;
    let mut config: Config = rest.parse().map_err(|error| unusable(super::error_text(&error)))?;
    if config.get_password().is_some() {
        return Err(unusable(
            "a password on a command line is visible to all users: write a line HOST:PORT:DATABASE:USER:PASSWORD into a file \
             that only you can read, and name the file by passfile=FILE",
        ));
    }
    let hosts = config.get_hosts();
    if !hosts.is_empty() && hosts.iter().all(|host| matches!(host, Host::Unix(_))) {
        if let Some((name, _)) = own.iter().find(|(_, value)| !value.is_empty()) {
            return Err(unusable(format!("{name} is for a server on another host")));
        }
        config.ssl_mode(SslMode::Disable);
        return Ok((config, None));
    }
    if hosts.is_empty() || hosts.iter().any(|host| matches!(host, Host::Unix(_))) {
        return Err(unusable(
            "name the server by the directory of its Unix socket (host=/run/postgresql), or by hosts that are reached over \
             TLS (postgresql://USER@HOST/DATABASE)",
        ));
    }
    if config.get_ssl_mode() == SslMode::Disable {
        return Err(unusable(
            "sslmode=disable: a server on another host is reached over TLS only; leave it out, or write sslmode=verify-full",
        ));
    }
    config.ssl_mode(SslMode::Require);
    let of = |name: &str| {
        let own = own.iter().find(|(own, _)| *own == name);
        own.map(|(_, value)| PathBuf::from(value))
    };
    if let Some(file) = of("passfile") {
        config.password(password(&file, &config)?);
    }
    let tls = Tls::new(&ClientFiles {
        authority: of("sslrootcert").filter(|path| path != Path::new("system")),
        certificate: of("sslcert"),
        key: of("sslkey"),
    })?;
    Ok((config, Some(tls)))
}

type OwnParameters = Vec<(&'static str, String)>;

/// Divides parameters into the client library's and our own.
fn split(text: &str) -> Result<(String, OwnParameters), StoreError> {
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| text.starts_with(scheme))
    {
        let (mut rest, mut own) = (String::new(), Vec::new());
        for (name, value) in words(text)? {
            match kind_of(&name, &value) {
                ParameterKind::Own(name) => own.push((name, value)),
                ParameterKind::Implied => {}
                ParameterKind::Other => {
                    let quoted = value.replace('\\', "\\\\").replace('\'', "\\'");
                    rest.push_str(&format!("{name}='{quoted}' "));
                }
            }
        }
        return Ok((rest, own));
    }
    let (address, query) = text.split_once('?').unwrap_or((text, ""));
    let (mut rest, mut own) = (Vec::new(), Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value).ok_or_else(|| unusable(format!("{name} has a % without two digits")))?;
        match kind_of(name, &value) {
            ParameterKind::Own(name) => own.push((name, value)),
            ParameterKind::Implied => {}
            ParameterKind::Other => rest.push(pair),
        }
    }
    Ok((
        format!("{address}?{}", rest.join("&")).trim_end_matches('?').into(),
        own,
    ))
}

/// Use of a parameter.
enum ParameterKind {
    /// One of our own parameters.
    Own(&'static str),
    /// The parameter demands what is always done here, so it is left out.
    Implied,
    /// A parameter of the client library.
    Other,
}

fn kind_of(name: &str, value: &str) -> ParameterKind {
    if name == "sslmode" && CHECKED.contains(&value) {
        return ParameterKind::Implied;
    }
    let own = OWN.into_iter().find(|own| *own == name);
    own.map_or(ParameterKind::Other, ParameterKind::Own)
}

/// Pairs of `name=value`. A value may be in single quotes; a character after a backslash stands for itself.
fn words(text: &str) -> Result<Vec<(String, String)>, StoreError> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest
            .split_once('=')
            .ok_or_else(|| unusable(format!("{rest:?} is no parameter: each has the form NAME=VALUE")))?;
        let after = after.trim_start();
        let quoted = after.starts_with('\'');
        let (mut value, mut escaped, mut end) = (String::new(), false, None);
        let text = if quoted { &after[1..] } else { after };
        for (index, letter) in text.char_indices() {
            match letter {
                letter if escaped => {
                    value.push(letter);
                    escaped = false;
                }
                '\\' => escaped = true,
                '\'' if quoted => {
                    end = Some(index + 1);
                    break;
                }
                letter if !quoted && letter.is_whitespace() => {
                    end = Some(index);
                    break;
                }
                letter => value.push(letter),
            }
        }
        let end = match end {
            Some(end) => end,
            None if quoted => return Err(unusable(format!("{} has no closing quote", name.trim()))),
            None => text.len(),
        };
        pairs.push((name.trim().to_owned(), value));
        rest = text[end..].trim_start();
    }
    Ok(pairs)
}

/// Decodes the `%` escapes of a URL.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

/// The password for this server, from a file of lines `HOST:PORT:DATABASE:USER:PASSWORD`; a field `*` matches
/// everything.
fn password(file: &Path, config: &Config) -> Result<String, StoreError> {
    let failed = |why: String| unusable(format!("passfile {}: {why}", file.display()));
    let mode = fs::metadata(file).map_err(|error| failed(error.to_string()))?.mode();
    if mode & 0o077 != 0 {
        return Err(failed("others can read it; `chmod 600` it".into()));
    }
    let text = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    let user = config.get_user().unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let is_host = |name: &str| {
        let hosts = config.get_hosts().iter();
        name == "*"
            || hosts
                .into_iter()
                .any(|host| matches!(host, Host::Tcp(host) if host == name))
    };
    let found = text.lines().find_map(|line| {
        let [host, at, in_database, of_user, password] = fields(line)?;
        let fits = |field: &str, value: &str| field == "*" || field == value;
        let all = is_host(&host) && fits(&at, &port) && fits(&in_database, database) && fits(&of_user, user);
        all.then_some(password)
    });
    found.ok_or_else(|| {
        failed(format!(
            "it has no line for user {user:?} of database {database:?} there"
        ))
    })
}

/// Fields of a line; a character after a backslash stands for itself.
fn fields(line: &str) -> Option<[String; 5]> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut()?.push(letters.next()?),
            letter => fields.last_mut()?.push(letter),
        }
    }
    fields.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        match read(text) {
            Ok((config, _)) => panic!("{text} was taken: {config:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_server_of_this_host_needs_no_tls_and_one_elsewhere_always_has_it() {
        let (config, tls) = read("host=/run/postgresql dbname='hot lease' user=a\\ b").expect("local");
        assert_eq!((config.get_ssl_mode(), tls.is_none()), (SslMode::Disable, true));
        assert_eq!(
            (config.get_dbname(), config.get_user()),
            (Some("hot lease"), Some("a b"))
        );
        for text in [
            "postgresql://hotlease@db.example:6543/ledger?sslmode=verify-full&connect_timeout=3",
            "host=db.example port=6543 user=hotlease dbname=ledger sslmode=require",
        ] {
            let (config, tls) = read(text).expect(text);
            assert_eq!(
                (config.get_ssl_mode(), tls.is_some()),
                (SslMode::Require, true),
                "{text}"
            );
            assert_eq!(config.get_hosts(), [Host::Tcp("db.example".into())]);
            assert_eq!((config.get_ports(), config.get_dbname()), (&[6543][..], Some("ledger")));
        }
    }

    #[test]
    fn parameters_that_leak_secrets_or_skip_verification_are_refused_with_a_remedy() {
        for (text, says) in [
            ("host=/run/postgresql password=x", "passfile"),
            ("postgresql://a:secret@db.example/x", "passfile"),
            ("host=db.example sslmode=disable", "over TLS only"),
            ("dbname=x", "host=/run/postgresql"),
            ("host=/run/postgresql,db.example", "host=/run/postgresql"),
            ("host=/run/postgresql sslrootcert=x", "sslrootcert is for"),
            ("host=db.example sslrootcert=/nowhere/ca.pem", "/nowhere/ca.pem"),
            ("host=db.example passfile=/nowhere/pass", "/nowhere/pass"),
            ("host=db.example dbname='x", "no closing quote"),
            ("nonsense", "NAME=VALUE"),
            ("postgresql://db.example/x?sslrootcert=%2", "two digits"),
        ] {
            let refusal = refusal(text);
            assert!(refusal.contains(says), "{text}: {refusal}");
            assert!(!refusal.contains("secret"), "{refusal}");
        }
    }

    #[test]
    fn the_password_is_that_of_the_first_line_that_fits() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("pass");
        fs::write(
            &file,
            "# site\nother:*:*:*:no\ndb.example:*:led\\:ger:hotlease:a\\:b:c\n*:*:*:*:last\n",
        )
        .expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("set");
        let with = |text: &str| read(&format!("{text} passfile={}", file.display())).map(|(config, _)| config);
        let open = with("host=db.example user=hotlease dbname=led:ger").map_err(|error| error.to_string());
        assert!(open.is_err_and(|why| why.contains("chmod 600")));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set");
        let config = with("host=db.example user=hotlease dbname=led:ger").expect("found");
        assert_eq!(config.get_password(), Some(&b"a:b:c"[..]));
        let config = with("host=db.example user=hotlease dbname=x").expect("found");
        assert_eq!(config.get_password(), Some(&b"last"[..]));
    }
}
