//! Choice of the provider for a worker: the best provider that carries bytes.

use crate::fake_platform::{FakePlatform, LinkBehaviour};
use crate::{Error, LeaseOptions};
use hotlease_fabric::ofi::Libfabric;
use hotlease_fabric::ofi::providers::remote_providers;
use std::net::{IpAddr, Ipv4Addr};

/// The providers that a client on loopback would try, best first; empty without libfabric.
pub(super) fn candidates() -> Vec<&'static str> {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    match Libfabric::load() {
        Ok(library) => remote_providers(&library, Some(local))
            .iter()
            .map(|provider| provider.name())
            .collect(),
        Err(error) => {
            eprintln!("{error}");
            Vec::new()
        }
    }
}

fn over_fabrics(welcomes: &[LinkBehaviour]) -> Result<FakePlatform, Error> {
    let options = LeaseOptions {
        transport: Some("ofi".into()),
        replace_lease: false,
        depth: 4,
        ..LeaseOptions::default()
    };
    FakePlatform::try_start(options, welcomes)
}

#[test]
fn the_next_provider_is_tried_when_one_fails() {
    for welcome in [LinkBehaviour::Link, LinkBehaviour::Refuse, LinkBehaviour::Mute] {
        let failing = usize::from(welcome != LinkBehaviour::Link);
        let names = candidates();
        let Some(wanted) = names.get(failing) else {
            eprintln!("skipped: {} providers lead to other hosts here", names.len());
            continue;
        };
        let platform = over_fabrics(&[welcome]).unwrap();
        assert_eq!(
            platform.invoker.transport(),
            *wanted,
            "of {names:?}, when the first is met with {welcome:?}"
        );
        let echo = platform.invoker.function("echo").unwrap();
        assert_eq!(echo.call(b"over there").unwrap(), b"over there", "{welcome:?}");
    }
}

#[test]
fn the_error_names_every_failed_provider_with_its_reason() {
    let names = candidates();
    if names.is_empty() {
        return eprintln!("skipped: no provider leads to other hosts here");
    }
    let error = over_fabrics(&vec![LinkBehaviour::Refuse; names.len()]).err().unwrap();
    assert!(matches!(error, Error::NoTransport { .. }), "{error:?}");
    let text = error.to_string();
    for name in names {
        let reason = format!("{name}: unavailable: there is no {name} today");
        assert!(text.contains(&reason), "{text:?} lacks {reason:?}");
    }
}
