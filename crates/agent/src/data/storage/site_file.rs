//! The operator's file for object storage: stores, and grants to tenants.

use super::keys;
use crate::isolation::reach::TENANT;
use hotlease_s3::SigningKeys;
use hotlease_wire::limits::STORAGE_MAX;
use hotlease_wire::storage::{StoragePlace, StoragePlaceError};
use reqwest::Url;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Largest number of stores in a file.
const STORES_MAX: usize = 64;
/// Largest number of grants of one store.
const GRANTS_MAX: usize = 1024;

/// The file, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteFile {
    store: Vec<StoreEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoreEntry {
    endpoint: String,
    #[serde(default = "usual_region")]
    region: String,
    credentials: PathBuf,
    #[serde(default = "usual_profile")]
    profile: String,
    grant: Vec<GrantEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantEntry {
    /// Tenants; `None` for all tenants that the agent serves.
    to: Option<Vec<String>>,
    reach: String,
}

fn usual_region() -> String {
    "us-east-1".into()
}

fn usual_profile() -> String {
    "default".into()
}

/// The stores of the file.
#[derive(Debug)]
pub(super) struct SiteStores {
    stores: Vec<Store>,
}

/// A store, and the grants for it.
#[derive(Debug)]
pub(super) struct Store {
    /// Address: a scheme, a host and a port.
    endpoint: Url,
    /// Value of the header `host`.
    pub host: String,
    /// Region that requests are signed for.
    pub region: String,
    credentials: PathBuf,
    profile: String,
    grants: Vec<StoreGrant>,
}

#[derive(Debug)]
struct StoreGrant {
    to: Option<Vec<String>>,
    pattern: Pattern,
}

/// A [`StoragePlace`] in which `{tenant}` is replaced by the tenant's name.
#[derive(Debug)]
struct Pattern {
    text: String,
    writable: bool,
}

impl FromStr for Pattern {
    type Err = StoragePlaceError;

    fn from_str(text: &str) -> Result<Self, StoragePlaceError> {
        let place: StoragePlace = text.replace(TENANT, "tenant").parse()?;
        let bare = text.strip_suffix(":rw").or_else(|| text.strip_suffix(":ro"));
        Ok(Self {
            text: bare.unwrap_or(text).to_owned(),
            writable: place.writable,
        })
    }
}

impl Pattern {
    /// Makes the place of this tenant; returns `None` if the tenant's name would change the path.
    fn of(&self, tenant: &str) -> Option<StoragePlace> {
        if self.text.contains(TENANT) && (tenant.is_empty() || tenant.contains('/')) {
            return None;
        }
        // Access is appended again, so that a tenant's name cannot set it.
        let access = if self.writable { "rw" } else { "ro" };
        let text = format!("{}:{access}", self.text.replace(TENANT, tenant));
        text.parse().ok()
    }
}

impl SiteStores {
    /// Reads the file, and checks that the keys can be read.
    pub fn load(file: &Path) -> Result<Self, String> {
        let site = Self::parse(&keys::read_private(file)?, file)?;
        for store in &site.stores {
            keys::keys(&store.credentials, &store.profile)?;
        }
        Ok(site)
    }

    fn parse(text: &str, file: &Path) -> Result<Self, String> {
        let SiteFile { store } = toml::from_str(text).map_err(|error| error.to_string())?;
        if store.len() > STORES_MAX {
            return Err(format!("it has {} stores, and may have {STORES_MAX}", store.len()));
        }
        let beside = file.parent().unwrap_or(Path::new("/"));
        let stores = store.into_iter().map(|store| Store::of(store, beside));
        Ok(Self {
            stores: stores.collect::<Result<_, _>>()?,
        })
    }

    /// Whether a store is reached over `https`, so that the client needs the system's certificates.
    pub fn has_tls(&self) -> bool {
        self.stores.iter().any(|store| store.endpoint.scheme() == "https")
    }

    /// A store by its number.
    pub fn store(&self, number: usize) -> Option<&Store> {
        self.stores.get(number)
    }

    /// Number of the first store with a grant to this tenant that contains the whole place `asked`.
    pub fn store_of(&self, tenant: &str, asked: &StoragePlace) -> Option<usize> {
        let contains = |store: &Store| store.places_granted_to(tenant).any(|place| place.contains(asked));
        self.stores.iter().position(contains)
    }

    /// Places that this tenant may ask for, as texts, as many as fit in a message.
    pub fn places_of(&self, tenant: &str) -> Vec<String> {
        let granted = self.stores.iter().flat_map(|store| store.places_granted_to(tenant));
        granted.take(STORAGE_MAX).map(|place| place.to_string()).collect()
    }
}

impl Store {
    fn of(written: StoreEntry, beside: &Path) -> Result<Self, String> {
        let StoreEntry {
            endpoint,
            region,
            credentials,
            profile,
            grant,
        } = written;
        let bad = |why: &str| format!("the endpoint {endpoint:?} {why}; write it as https://HOST or http://HOST:PORT");
        let url = Url::parse(&endpoint).map_err(|error| bad(&format!("cannot be understood ({error})")))?;
        let is_plain = matches!(url.path(), "" | "/")
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        let host = url
            .host_str()
            .filter(|_| is_plain && matches!(url.scheme(), "http" | "https"));
        let host = host.ok_or_else(|| bad("must be an HTTP host and nothing more"))?;
        let host = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        if region.is_empty() || !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(format!("{region:?} is no region"));
        }
        if grant.len() > GRANTS_MAX {
            return Err(format!(
                "{endpoint} has {} grants, and may have {GRANTS_MAX}",
                grant.len()
            ));
        }
        let grants = grant.into_iter().map(|grant| {
            let pattern = grant.reach.parse().map_err(|bad: StoragePlaceError| bad.to_string())?;
            Ok::<_, String>(StoreGrant { to: grant.to, pattern })
        });
        Ok(Self {
            host,
            region,
            credentials: beside.join(credentials),
            profile,
            grants: grants.collect::<Result<_, _>>()?,
            endpoint: url,
        })
    }

    fn places_granted_to(&self, tenant: &str) -> impl Iterator<Item = StoragePlace> {
        let is_for = move |grant: &&StoreGrant| {
            let to = grant.to.as_ref();
            to.is_none_or(|names| names.iter().any(|name| name == tenant))
        };
        self.grants
            .iter()
            .filter(is_for)
            .filter_map(move |grant| grant.pattern.of(tenant))
    }

    /// The site's present keys of this store.
    pub async fn keys(&self) -> Result<SigningKeys, String> {
        let (file, profile) = (self.credentials.clone(), self.profile.clone());
        // The disk may be slow.
        let read = tokio::task::spawn_blocking(move || keys::keys(&file, &profile));
        read.await.map_err(|error| error.to_string())?
    }

    /// URL of a request; `None` if URL rules would change the path or query.
    pub fn url(&self, path: &str, query: &str) -> Option<Url> {
        let mut url = self.endpoint.clone();
        url.set_path(path);
        url.set_query((!query.is_empty()).then_some(query));
        // The URL must be exactly the one that is signed.
        (url.path() == path && url.query().unwrap_or_default() == query).then_some(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [[store]]
        endpoint = "https://s3.example.org"
        region = "eu-central-1"
        credentials = "keys"
        [[store.grant]]
        reach = "s3://people/{tenant}:rw"
        [[store.grant]]
        to = ["ann"]
        reach = "s3://reference"
        [[store]]
        endpoint = "http://10.0.0.1:9000"
        credentials = "/elsewhere/keys"
        profile = "hpc"
        [[store.grant]]
        reach = "s3://{tenant}-data:rw"
    "#;

    fn site(text: &str) -> Result<SiteStores, String> {
        SiteStores::parse(text, Path::new("/etc/hotlease/storage.toml"))
    }

    #[test]
    fn tenants_are_granted_what_the_file_says_and_no_more() {
        let site = site(GOOD).expect("good");
        let store_of = |tenant: &str, place: &str| site.store_of(tenant, &place.parse().expect("a place"));
        for (tenant, place, store) in [
            ("ann", "s3://people/ann:rw", Some(0)),
            ("ann", "s3://people/ann/run", Some(0)),
            ("ann", "s3://people/annette", None),
            ("ann", "s3://people/bob", None),
            ("ann", "s3://people", None),
            ("ann", "s3://reference/a", Some(0)),
            ("ann", "s3://reference:rw", None),
            ("bob", "s3://reference", None),
            ("bob", "s3://bob-data:rw", Some(1)),
            ("bob", "s3://ann-data", None),
            ("uid:7", "s3://people/uid:7:rw", Some(0)),
            // Names that would lead to another place.
            ("..", "s3://people", None),
            ("", "s3://people", None),
            ("ann/run", "s3://people/ann/run", None),
            ("Ann", "s3://people/Ann", Some(0)),
        ] {
            assert_eq!(store_of(tenant, place), store, "{tenant} asks for {place}");
        }
        // A tenant's name cannot set the access.
        let read_only = self::site(&GOOD.replace("{tenant}:rw", "{tenant}")).expect("good");
        let place: StoragePlace = "s3://people/ann:rw:rw".parse().expect("a place");
        assert_eq!(read_only.store_of("ann:rw", &place), None);
        assert_eq!(
            site.places_of("ann"),
            ["s3://people/ann:rw", "s3://reference:ro", "s3://ann-data:rw"]
        );
    }

    #[test]
    fn a_store_is_a_host_and_files_are_beside_the_site_s() {
        let site = site(GOOD).expect("good");
        let [first, second] = &site.stores[..] else {
            panic!("{site:?}")
        };
        assert_eq!((&*first.host, &*first.region), ("s3.example.org", "eu-central-1"));
        assert_eq!((&*second.host, &*second.region), ("10.0.0.1:9000", "us-east-1"));
        assert_eq!(first.credentials, Path::new("/etc/hotlease/keys"));
        assert_eq!(
            (second.credentials.as_path(), &*second.profile),
            (Path::new("/elsewhere/keys"), "hpc")
        );
        let url = second.url("/people/ann/a%20b", "uploads=").expect("good");
        assert_eq!(url.as_str(), "http://10.0.0.1:9000/people/ann/a%20b?uploads=");
        assert!(
            second.url("/people/../ann", "").is_none(),
            "a path that changes in a URL was accepted"
        );
    }

    #[test]
    fn a_file_that_says_nonsense_is_refused_with_its_words() {
        for (from, to, word) in [
            ("https://s3.example.org", "s3.example.org", "endpoint"),
            ("https://s3.example.org", "https://s3.example.org/path", "endpoint"),
            ("https://s3.example.org", "https://key@s3.example.org", "endpoint"),
            ("https://s3.example.org", "ftp://s3.example.org", "endpoint"),
            ("eu-central-1", "eu/central", "region"),
            ("s3://reference", "reference", "s3://"),
            ("s3://reference", "s3://reference/../a", "prefix"),
            ("to = [\"ann\"]", "tenant = [\"ann\"]", "tenant"),
            ("credentials = \"keys\"", "access_key = \"keys\"", "access_key"),
        ] {
            let error = site(&GOOD.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(word), "{error} does not say {word}");
        }
    }
}
