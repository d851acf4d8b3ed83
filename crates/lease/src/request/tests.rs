use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn good() -> LeaseRequest {
    LeaseRequest::new("uid:1000", LeaseSpec::exclusive(2, 1), SECOND)
}

fn refusal(request: &LeaseRequest) -> String {
    match request.check() {
        Err(Rejection::BadRequest { what }) => what,
        other => panic!("{request:?} gave {other:?}"),
    }
}

#[test]
fn an_operators_bounds_cut_the_time_to_live_and_are_bounded_themselves() {
    let bounds = LeaseBounds {
        ttl: Some(SECOND / 2),
        ..LeaseBounds::default()
    };
    assert_eq!(bounds.cut(good()).ttl, SECOND / 2);
    assert_eq!(LeaseBounds::default().cut(good()), good());
    assert_eq!(bounds.fault(), None);
    let never = LeaseBounds {
        idle: Some(Duration::ZERO),
        ..bounds
    };
    assert!(never.fault().is_some_and(|fault| fault.contains("idle")));
    let endless = LeaseBounds {
        ttl: Some(TTL_MAX * 2),
        ..bounds
    };
    assert!(endless.fault().is_some_and(|fault| fault.contains("time to live")));
}

#[test]
fn each_bound_is_refused_by_the_name_of_its_option() {
    good().check().expect("good");
    let spec = |spec| LeaseRequest { spec, ..good() };
    let exclusive = LeaseSpec::exclusive;
    let spread = |least| LeaseRequest {
        spread: PlacementSpread::Several { least },
        ..good()
    };
    let state = |spec, name: &str| LeaseRequest {
        spec,
        state: Some(name.into()),
        ..good()
    };
    let ttl = |ttl| LeaseRequest { ttl, ..good() };
    spread(1).check().expect("good");
    spread(2).check().expect("good");
    state(exclusive(1, 1), "model").check().expect("good");
    ttl(TTL_MIN).check().expect("good");
    ttl(TTL_MAX).check().expect("good");
    let shared = LeaseSpec {
        sharing: CoreUse::Shared,
        ..exclusive(2, 1)
    };
    let many_gpus = LeaseSpec {
        gpus: GPUS_PER_WORKER_MAX + 1,
        ..exclusive(1, 1)
    };
    let agents = (0..=EXCLUDED_MAX as u8).map(|number| AgentId([number; 8]));
    for (request, option) in [
        (spec(exclusive(0, 1)), "workers"),
        (spec(exclusive(WORKERS_MAX + 1, 1)), "workers"),
        (spec(exclusive(1, 0)), "slots"),
        (spec(exclusive(1, SLOTS_MAX + 1)), "slots"),
        (spec(exclusive(u32::MAX, u32::MAX)), "workers"),
        (spec(many_gpus), "gpus"),
        (spread(0), "spread"),
        (spread(3), "spread"),
        (
            LeaseRequest {
                spec: shared,
                ..spread(1)
            },
            "spread",
        ),
        (
            LeaseRequest {
                without: agents.collect(),
                ..good()
            },
            "left out",
        ),
        (ttl(Duration::ZERO), "ttl"),
        (ttl(TTL_MIN - Duration::from_nanos(1)), "ttl"),
        (ttl(TTL_MAX + Duration::from_nanos(1)), "ttl"),
        (state(exclusive(1, 1), ".."), "state"),
        (state(exclusive(2, 1), "model"), "one worker with one slot"),
        (state(exclusive(1, 2), "model"), "one worker with one slot"),
        (
            LeaseRequest {
                label: "l".repeat(LABEL_BYTES_MAX + 1),
                ..good()
            },
            "label",
        ),
        (
            LeaseRequest {
                label: "\x1b[2J".into(),
                ..good()
            },
            "label",
        ),
        (
            LeaseRequest {
                job: "j".repeat(LABEL_BYTES_MAX + 1),
                ..good()
            },
            "job",
        ),
        (
            LeaseRequest {
                job: "7\n8".into(),
                ..good()
            },
            "job",
        ),
    ] {
        let what = refusal(&request);
        assert!(what.contains(option), "{what:?} does not name {option}");
    }
}

#[test]
fn a_shared_lease_is_billed_one_core_for_each_worker_at_most() {
    let exclusive = LeaseSpec::exclusive(2, 3);
    assert_eq!(exclusive.billable_cores(&[0, 0, 0, 0, 0, 0]), 6);
    let shared = LeaseSpec {
        sharing: CoreUse::Shared,
        ..exclusive
    };
    assert_eq!(shared.billable_cores(&[4, 4, 4, 4, 4, 4]), 1);
    assert_eq!(shared.billable_cores(&[4, 4, 4, 5, 5, 5]), 2);
    assert_eq!(shared.billable_cores(&[1, 2, 3, 4, 5, 6]), 2, "an agent that lies");
    assert_eq!(shared.billable_cores(&[]), 1, "an agent that lies");
    assert_eq!((exclusive.busy_cores(), shared.busy_cores()), (6, 2));
}

#[cfg(feature = "grpc")]
mod message {
    use super::*;
    use hotlease_wire::grpc::{AcquireRequest, Polling, PythonRuntime, Sharing};

    fn message() -> AcquireRequest {
        AcquireRequest {
            workers: 2,
            slots_per_worker: 1,
            tenant: "uid:1000".into(),
            ..AcquireRequest::default()
        }
    }

    fn of(message: &AcquireRequest) -> Result<LeaseRequest, Rejection> {
        LeaseRequest::of(message, SECOND)
    }

    #[test]
    fn a_listing_shows_terms_of_the_request_and_nothing_else() {
        let request = LeaseRequest {
            label: "label".into(),
            job: "job".into(),
            spec: LeaseSpec {
                sharing: CoreUse::Shared,
                ..good().spec
            },
            ..good()
        };
        let expected = hotlease_wire::grpc::LeaseInfo {
            tenant: request.tenant.clone(),
            label: "label".into(),
            shared: true,
            ..Default::default()
        };
        assert_eq!(request.listing(), expected);
        assert!(!good().listing().shared);
    }

    #[test]
    fn fields_missing_from_a_message_have_their_defaults() {
        assert_eq!(of(&message()), Ok(good()));
        let whole = AcquireRequest {
            memory_bytes: 1 << 20,
            gpus: 3,
            ttl_ms: 2000,
            hot_budget_us: 1000,
            polling: Polling::Hot.into(),
            label: "label".into(),
            job: "job".into(),
            spread_least: 1,
            without: vec!["01".repeat(8)],
            ..message()
        };
        let expected = LeaseRequest {
            label: "label".into(),
            job: "job".into(),
            spec: LeaseSpec {
                memory_bytes: 1 << 20,
                gpus: 3,
                sharing: CoreUse::Exclusive(PollingPolicy::Hot),
                ..LeaseSpec::exclusive(2, 1)
            },
            spread: PlacementSpread::Several { least: 1 },
            without: [AgentId([1; 8])].into(),
            ttl: 2 * SECOND,
            hot_budget_ns: 1_000_000,
            ..good()
        };
        assert_eq!(of(&whole), Ok(expected));
        let unlimited = AcquireRequest {
            hot_budget_us: u64::MAX,
            ..message()
        };
        assert_eq!(of(&unlimited).map(|request| request.hot_budget_ns), Ok(u64::MAX));
        let kept = AcquireRequest {
            workers: 1,
            state: "model".into(),
            ..message()
        };
        assert_eq!(of(&kept).map(|request| request.state), Ok(Some("model".into())));
    }

    #[test]
    fn slots_of_shared_cores_sleep_for_any_polling_that_is_asked_for_except_hot() {
        let asked = |polling: Polling| {
            of(&AcquireRequest {
                sharing: Sharing::Shared.into(),
                polling: polling.into(),
                ..message()
            })
            .map(|request| (request.spec.sharing, request.spec.sharing.polling()))
        };
        let sleeping = Ok((CoreUse::Shared, PollingPolicy::Warm));
        assert_eq!(asked(Polling::Adaptive), sleeping);
        assert_eq!(asked(Polling::Warm), sleeping);
        assert!(matches!(asked(Polling::Hot), Err(Rejection::BadRequest { .. })));
    }

    #[test]
    fn messages_that_mean_nothing_are_refused() {
        for message in [
            AcquireRequest {
                polling: 3,
                ..message()
            },
            AcquireRequest {
                sharing: -1,
                ..message()
            },
            AcquireRequest {
                without: vec!["agent".into()],
                ..message()
            },
            AcquireRequest {
                variables: [("HOTLEASE_LOG".to_owned(), String::new())].into(),
                ..message()
            },
            AcquireRequest {
                slots_per_worker: 2,
                python: Some(PythonRuntime::default()),
                ..message()
            },
            AcquireRequest { ttl_ms: 1, ..message() },
            AcquireRequest::default(),
        ] {
            let refusal = of(&message);
            assert!(
                matches!(refusal, Err(Rejection::BadRequest { .. })),
                "{message:?} gave {refusal:?}"
            );
        }
    }
}
