use super::*;

#[test]
fn defaults_are_valid_and_nonsense_is_named() {
    LeaseOptions::default().check().unwrap();
    let bad = |options: LeaseOptions, word: &str| {
        let text = options.check().unwrap_err().to_string();
        assert!(text.contains(word), "{text:?} does not name {word}");
    };
    let base = LeaseOptions::default;
    bad(LeaseOptions { workers: 0, ..base() }, "workers");
    bad(
        LeaseOptions {
            slots: u16::MAX,
            ..base()
        },
        "slots",
    );
    bad(LeaseOptions { gpus: 65, ..base() }, "gpus");
    let with = |name: &str| LeaseOptions {
        variables: [(name.to_owned(), "1".to_owned())].into(),
        ..base()
    };
    with("LD_PRELOAD").check().unwrap();
    bad(with("A=B"), "variables");
    bad(with("HOTLEASE_LOG"), "HOTLEASE_LOG");
    let kept = |workers, slots| LeaseOptions {
        state: "words".into(),
        workers,
        slots,
        ..base()
    };
    kept(1, 1).check().unwrap();
    bad(kept(2, 1), "one worker with one slot");
    bad(kept(1, 2), "one worker with one slot");
    bad(LeaseOptions { depth: 63, ..base() }, "depth");
    bad(
        LeaseOptions {
            request_bytes: 0,
            ..base()
        },
        "request_bytes",
    );
    let huge = LeaseOptions {
        depth: 4096,
        reply_bytes: 4 << 20,
        ..base()
    };
    bad(huge, "depth 4096");
    bad(
        LeaseOptions {
            registered_buffers: 1025,
            ..base()
        },
        "registered_buffers",
    );
    bad(
        LeaseOptions {
            registered_bytes: 0,
            ..base()
        },
        "registered_bytes",
    );
    bad(
        LeaseOptions {
            ttl: Duration::ZERO,
            ..base()
        },
        "ttl",
    );
    bad(
        LeaseOptions {
            label: "x".repeat(65),
            ..base()
        },
        "label",
    );
}
