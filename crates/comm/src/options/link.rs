//! Choice of the link that members communicate over.

use super::AutoLink;
use crate::error::Error;
use hotlease_collectives::LinkKind;
use std::fmt;
use std::str::FromStr;

/// Link that members communicate over; the same at all members.
///
/// As text: `direct`, `tcp`, `ofi` or `ofi:PROVIDER`, `redis://host:6379`, `s3://bucket`, `dynamodb://table`, or
/// `auto:` and several of these links. A store is for members that cannot reach each other; they still meet at the
/// rendezvous. The keys that members write to the store begin with `prefix`, which can follow the address
/// (`redis://host?prefix=mine/`; default: `hotlease/`).
///
/// ```
/// use hotlease_comm::LinkChoice;
///
/// let link: LinkChoice = "redis://cache.example:6379/2".parse()?;
/// assert_eq!(link.to_string(), "redis://cache.example:6379/2");
/// # Ok::<(), hotlease_comm::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkChoice {
    /// The fastest link between members that can reach each other.
    #[default]
    Direct,
    /// TCP connections between all members.
    Tcp,
    /// libfabric, which drives the adapters of RDMA networks, between all members, also inside a node. Members must
    /// reach each other without a NAT between them.
    Ofi {
        /// Name of the provider, for instance `tcp;ofi_rxm`; the same at all members. If `None`, the provider that
        /// `HOTLEASE_TRANSPORT` names, else the best provider that reaches other hosts.
        provider: Option<String>,
    },
    /// A Redis server, version 6 or later, not a cluster; `rediss:` uses TLS. User and password come from the address,
    /// else from `REDIS_USERNAME` and `REDIS_PASSWORD`.
    Redis(StoreAddress),
    /// A bucket of S3, or of another store with the same protocol: `s3://bucket?endpoint=https://host&region=name`.
    /// Credentials come from the environment as for all programs of AWS: `AWS_ACCESS_KEY_ID` and so on, or the role of
    /// a function, container or instance.
    S3(StoreAddress),
    /// A table of DynamoDB, whose keys are the strings `pk` and `sk`:
    /// `dynamodb://table?endpoint=https://host&region=name`. Credentials come from the environment as for S3.
    DynamoDb(StoreAddress),
    /// The best of several links, chosen by the model: see [`AutoLink`].
    Auto(AutoLink),
}

/// Address of a store. Its credentials are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreAddress {
    /// Scheme, credentials, host and path, without the part after `?`.
    full: String,
    /// Scheme, host and path, without credentials.
    shown: String,
    prefix: String,
    /// Endpoint of S3 or DynamoDB, if the address names one.
    endpoint: Option<String>,
    region: Option<String>,
}

/// Default prefix of the keys.
const PREFIX: &str = "hotlease/";
/// Maximum length of a prefix, in bytes.
const PREFIX_BYTES_MAX: usize = 200;
/// Maximum length of the name of a table, in bytes.
const TABLE_BYTES_MAX: usize = 255;

impl LinkChoice {
    /// libfabric, with its best provider.
    pub const OFI: Self = Self::Ofi { provider: None };

    /// Returns whether the link goes through a store, or is an `auto` link that may do so.
    pub fn is_mediated(&self) -> bool {
        self.can_be(|link| link.kind().is_some_and(LinkKind::is_mediated))
    }

    /// Returns whether the link goes over libfabric, or is an `auto` link that may do so.
    pub(super) fn is_fabric(&self) -> bool {
        self.can_be(|link| matches!(link, Self::Ofi { .. }))
    }

    fn can_be(&self, is: impl Fn(&Self) -> bool) -> bool {
        match self {
            Self::Auto(auto) => auto.links.iter().any(is),
            link => is(link),
        }
    }

    /// Kind of the link in tables and prices; `None` for `auto`, whose link is still to be chosen.
    pub const fn kind(&self) -> Option<LinkKind> {
        Some(match self {
            Self::Direct | Self::Tcp => LinkKind::Tcp,
            Self::Ofi { .. } => LinkKind::Ofi,
            Self::Redis(_) => LinkKind::Redis,
            Self::S3(_) => LinkKind::S3,
            Self::DynamoDb(_) => LinkKind::DynamoDb,
            Self::Auto(_) => return None,
        })
    }

    /// Text of the link that members must agree on. It leaves out two things that may differ between members: shared
    /// memory, which two members of a node use if both choose it, and the address of a store.
    pub(super) fn agreed(&self) -> String {
        match self.kind() {
            Some(LinkKind::Tcp) => "direct".into(),
            Some(kind) => kind.to_string(),
            None => "auto".into(),
        }
    }

    /// Address of the store that the link goes through.
    pub fn store(&self) -> Option<&StoreAddress> {
        match self {
            Self::Direct | Self::Tcp | Self::Ofi { .. } | Self::Auto(_) => None,
            Self::Redis(address) | Self::S3(address) | Self::DynamoDb(address) => Some(address),
        }
    }
}

impl StoreAddress {
    /// Scheme, credentials, host and path, without the part after `?`. Not to be shown.
    pub fn with_credentials(&self) -> &str {
        &self.full
    }

    /// Prefix of the keys.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Endpoint of S3 or DynamoDB, if the address names one; otherwise it comes from the environment, or is Amazon's
    /// own.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// Region of S3 or DynamoDB, if the address names one; otherwise it comes from the environment.
    pub fn region(&self) -> Option<&str> {
        self.region.as_deref()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (full, query) = text.split_once('?').unwrap_or((text, ""));
        let (scheme, rest) = full.split_once("://").ok_or("it has no `://`")?;
        let host_at = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        if host_at.split('/').next().is_none_or(str::is_empty) {
            return Err("it names no host".into());
        }
        let (mut prefix, mut endpoint, mut region) = (PREFIX.to_owned(), None, None);
        let is_aws = scheme != "redis" && scheme != "rediss";
        let is_of_table = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if scheme == "dynamodb" && !(rest.len() <= TABLE_BYTES_MAX && rest.bytes().all(is_of_table)) {
            return Err(format!(
                "a table's name is of at most {TABLE_BYTES_MAX} letters, digits, and of _-."
            ));
        }
        for (name, value) in query
            .split('&')
            .filter(|part| !part.is_empty())
            .map(|part| part.split_once('=').unwrap_or((part, "")))
        {
            match name {
                "prefix" => prefix = value.to_owned(),
                // The endpoint is shown, so it must not contain a password; endpoints need none.
                "endpoint" if is_aws && value.starts_with("http") && !value.contains('@') => {
                    endpoint = Some(value.to_owned());
                }
                "region" if is_aws => region = Some(value.to_owned()),
                _ if is_aws => {
                    return Err("its settings can be `prefix`, `endpoint` (http...) and `region`".into());
                }
                _ => return Err("its settings can be `prefix`".into()),
            }
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.:{}".contains(&byte);
        if prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(is_plain) {
            return Err(format!(
                "its prefix can have {PREFIX_BYTES_MAX} letters, digits, and of /-_.:{{}}"
            ));
        }
        Ok(Self {
            full: full.to_owned(),
            shown: format!("{scheme}://{host_at}"),
            prefix,
            endpoint,
            region,
        })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} under {:?}", self.shown, self.prefix)
    }
}

impl fmt::Display for LinkChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Tcp => f.write_str("tcp"),
            Self::Ofi { provider: None } => f.write_str("ofi"),
            Self::Ofi { provider: Some(name) } => write!(f, "ofi:{name}"),
            Self::Redis(address) | Self::S3(address) | Self::DynamoDb(address) => address.fmt(f),
            Self::Auto(auto) => auto.fmt(f),
        }
    }
}

impl FromStr for LinkChoice {
    type Err = Error;

    /// # Errors
    /// [`Error::Options`] if the text is not a link. The error does not repeat the text, which may contain a password.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| Error::Options {
            what: format!("a link: {why}"),
        };
        match text.split_once(':').map_or(text, |(scheme, _)| scheme) {
            "direct" if text == "direct" => Ok(Self::Direct),
            "tcp" if text == "tcp" => Ok(Self::Tcp),
            "ofi" => match text.strip_prefix("ofi:") {
                None => Ok(Self::OFI),
                Some("") => Err(wrong("`ofi:` names no provider of libfabric".into())),
                Some(name) => Ok(Self::Ofi {
                    provider: Some(name.into()),
                }),
            },
            "redis" | "rediss" => StoreAddress::parse(text).map(Self::Redis).map_err(wrong),
            "s3" => StoreAddress::parse(text).map(Self::S3).map_err(wrong),
            "dynamodb" => StoreAddress::parse(text).map(Self::DynamoDb).map_err(wrong),
            "auto" => text[4..].trim_start_matches(':').parse().map(Self::Auto),
            _ => Err(wrong(
                "it can be `direct`, `tcp`, `ofi`, `redis://host:port`, `s3://bucket`, `dynamodb://table`, or `auto:` and several of these"
                    .into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_they_are_shown() {
        for text in [
            "direct",
            "tcp",
            "ofi",
            "ofi:tcp;ofi_rxm",
            "redis://localhost:1",
            "rediss://a.b/3",
            "s3://bucket",
            "dynamodb://a.table-of_mine",
        ] {
            let link: LinkChoice = text.parse().expect(text);
            assert_eq!(link.to_string(), text);
        }
        let link: LinkChoice = "redis://h?prefix=a/b:".parse().expect("a link");
        let prefix = link.store().map(StoreAddress::prefix);
        assert_eq!((prefix, link.to_string().as_str()), (Some("a/b:"), "redis://h"));
        assert!(link.is_mediated());
    }

    #[test]
    fn invalid_links_are_refused_without_repeating_the_text() {
        for text in [
            "",
            "tcp:",
            "ofi:",
            "http://me:secret@h",
            "redis:me:secret",
            "redis://me:secret@",
            "redis://h?secret=1&prefix=*",
            "dynamodb://",
            "dynamodb://me:secret@table",
            "dynamodb://table/more",
            "dynamodb://table?secret=1",
            "dynamodb://table?endpoint=http://me:secret@h",
        ] {
            let error = text.parse::<LinkChoice>().expect_err(text).to_string();
            assert!(error.contains("link") && !error.contains("secret@"), "{error}");
        }
    }

    #[test]
    fn passwords_are_shown_nowhere() {
        let link: LinkChoice = "redis://me:pass:w@rd@host:1/2".parse().expect("a link");
        let shown = format!("{link} {link:?}");
        assert!(
            shown.contains("host:1/2") && !shown.contains("pass") && !shown.contains("rd@"),
            "{shown}"
        );
    }
}
