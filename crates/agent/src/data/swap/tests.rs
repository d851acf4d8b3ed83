use super::files::{FILES_MAX, StateClaim, StateLock, StateRequest, StateWriter};
use super::{SwapOptions, WorkerStateKeeper, check_directory, listing, program_of, program_of_library, state_request};
use hotlease_lease::LeaseRequest;
use hotlease_sandbox::Kind;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{AcquireRequest, PythonRuntime};
use hotlease_wire::ids::LeaseId;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Text in the lock's file.
const HOLDER: &str = "lease 1 on node1";

fn scene() -> (tempfile::TempDir, SwapOptions) {
    let folder = tempfile::tempdir().expect("a folder");
    let options = SwapOptions::new(folder.path());
    (folder, options)
}

fn model(lease: u8) -> StateRequest {
    StateRequest {
        tenant: "uid:7".into(),
        name: "model".into(),
        program: [1; 32],
        lease: LeaseId([lease; 8]),
    }
}

fn hold(options: &SwapOptions, wanted: StateRequest) -> Result<StateLock, String> {
    match StateLock::try_take(&options.directory, wanted, HOLDER)? {
        StateClaim::Held(hold) => Ok(hold),
        StateClaim::InUse(why) => Err(why),
    }
}

fn write(hold: &StateLock, options: &SwapOptions, bytes: &[u8]) -> StateWriter {
    let mut part = hold.part(options).expect("a file");
    part.add(bytes).expect("written");
    part
}

fn save(options: &SwapOptions, bytes: &[u8]) -> PathBuf {
    let hold = hold(options, model(1)).expect("no lease has it");
    let part = write(&hold, options, bytes);
    part.finish("node1").expect("it lasts").0
}

fn names(options: &SwapOptions) -> Vec<String> {
    let listed = fs::read_dir(options.directory.join("of-uid:7")).expect("a folder");
    let names = listed.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().expect("text")).collect();
    names.sort();
    names
}

fn refused(options: &SwapOptions, wanted: StateRequest) -> String {
    refused_for(options, wanted, true)
}

/// Returns the reason why no saved state is taken. `ever`: whether the next attempt would fail in the same way.
fn refused_for(options: &SwapOptions, wanted: StateRequest, ever: bool) -> String {
    let hold = hold(options, wanted).expect("no lease has it");
    match hold.take_saved() {
        Err(error) => {
            assert_eq!(error.lasts, ever, "{error}");
            error.why
        }
        Ok(taken) => panic!("it was given out: {}", taken.is_some()),
    }
}

#[test]
fn a_state_is_found_once_and_only_when_it_is_whole() {
    let (_folder, options) = scene();
    let first = hold(&options, model(1)).expect("no lease has it");
    assert!(first.take_saved().expect("looked").is_none(), "there is none yet");
    let part = write(&first, &options, b"weights");
    assert_eq!(
        names(&options),
        ["model.lock", "model.part"],
        "found before it is whole"
    );
    part.finish("node1").expect("it lasts");
    drop(first);
    assert_eq!(names(&options), ["model.state"]);
    let second = hold(&options, model(2)).expect("no lease has it");
    let taken = second.take_saved().expect("looked").expect("it is there");
    let mut bytes = String::new();
    std::io::Read::read_to_string(&mut taken.file().expect("open"), &mut bytes).expect("read");
    assert_eq!(bytes, "weights");
    assert_eq!(taken.head.host, "node1");
    taken.mark_restored();
    assert!(second.take_saved().expect("looked").is_none(), "it was given twice");
}

#[test]
fn a_state_that_was_not_restored_is_available_again() {
    let (_folder, options) = scene();
    save(&options, b"weights");
    for _ in 0..2 {
        let hold = hold(&options, model(2)).expect("no lease has it");
        let taken = hold.take_saved().expect("looked");
        assert!(taken.is_some(), "it is gone after a restore that failed");
    }
    assert_eq!(names(&options), ["model.state"]);
}

#[test]
fn a_state_in_use_is_given_to_no_other_lease_and_the_error_names_its_lease() {
    let (_folder, options) = scene();
    save(&options, b"weights");
    let first = hold(&options, model(1)).expect("no lease has it");
    let taken = first.take_saved().expect("looked").expect("it is there");
    let why = hold(&options, model(2)).err().expect("it is in use");
    assert!(why.contains("`model` is in use by lease 1 on node1"), "{why}");
    // If the file system has no locks that all nodes see, the renamed file itself is the claim.
    fs::remove_file(options.directory.join("of-uid:7/model.lock")).expect("a lock");
    let why = refused_for(&options, model(2), false);
    assert!(why.contains("is being restored by another lease"), "{why}");
    drop(taken);
}

#[test]
fn only_one_of_many_leases_gets_a_state() {
    let (_folder, options) = scene();
    save(&options, b"weights");
    let got = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for lease in 0..8 {
            let (options, got) = (&options, &got);
            scope.spawn(move || {
                let begun = Instant::now();
                let hold = loop {
                    match hold(options, model(lease)) {
                        Ok(hold) => break hold,
                        Err(why) => assert!(begun.elapsed() < Duration::from_secs(30), "{why}"),
                    }
                    std::thread::yield_now();
                };
                if let Some(taken) = hold.take_saved().expect("looked") {
                    got.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    taken.mark_restored();
                }
            });
        }
    });
    assert_eq!(got.into_inner(), 1);
    assert_eq!(names(&options), [""; 0], "locks are left");
}

#[test]
fn another_tenant_s_program_s_or_a_damaged_file_is_refused_and_stays() {
    let (_folder, options) = scene();
    let path = save(&options, b"weights");
    let other = StateRequest {
        program: [2; 32],
        ..model(2)
    };
    let why = refused(&options, other);
    assert!(
        why.contains("another program") && why.contains("hotlease state rm"),
        "{why}"
    );
    let whole = fs::read(&path).expect("a state");
    let theirs = options.directory.join("of-uid:8");
    fs::create_dir(&theirs).expect("a folder");
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).expect("ours");
    fs::write(theirs.join("model.state"), &whole).expect("copied");
    let stranger = StateRequest {
        tenant: "uid:8".into(),
        ..model(2)
    };
    assert!(refused(&options, stranger).contains("another tenant"));
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let cases = [
        (whole[..whole.len() - 1].to_vec(), "cut short"),
        ([&whole[..], b"x"].concat(), "too long"),
        (flipped(whole.len() - 1), "not those that were saved"),
        (flipped(20), "its head is damaged"),
        (flipped(0), "no state of a worker"),
        (Vec::new(), "no state of a worker"),
    ];
    for (bytes, expected) in cases {
        fs::write(&path, &bytes).expect("written");
        let why = refused(&options, model(2));
        assert!(why.contains(expected), "{why}, not {expected}");
        assert_eq!(fs::read(&path).expect("it stays"), bytes);
    }
}

#[test]
fn a_state_over_its_own_or_its_tenants_limit_leaves_no_file() {
    let (_folder, mut options) = scene();
    options.state_bytes = 10;
    let first = hold(&options, model(1)).expect("no lease has it");
    let mut part = first.part(&options).expect("a file");
    assert!(part.expect(10).is_ok() && part.expect(11).is_err());
    assert!(part.add(&[0; 11]).is_err());
    part.add(&[0; 4]).expect("it fits");
    assert!(
        part.expect(6).is_ok() && part.expect(7).is_err(),
        "pieces count together"
    );
    assert!(part.expect(u64::MAX).is_err());
    drop(part);
    drop(first);
    assert_eq!(names(&options), [""; 0]);
    options.state_bytes = 1 << 20;
    let path = save(&options, &[0; 1000]);
    // The file of the state's lock uses quota, too.
    options.tenant_bytes = fs::metadata(path).expect("a state").len() + HOLDER.len() as u64 + 5;
    let other = StateRequest {
        name: "other".into(),
        ..model(2)
    };
    let second = hold(&options, other).expect("no lease has it");
    let mut part = second.part(&options).expect("a file");
    let why = part.expect(6).expect_err("the tenant has too much");
    assert!(part.expect(5).is_ok() && why.contains("--swap-tenant-bytes"), "{why}");
}

#[test]
fn states_that_are_saved_at_once_share_what_their_tenant_may_have() {
    const PIECE: usize = 10_000;
    let (_folder, mut options) = scene();
    options.tenant_bytes = 4 << 20;
    let heads = std::thread::scope(|scope| {
        let savers: Vec<_> = (0..4_u8)
            .map(|number| {
                let options = &options;
                scope.spawn(move || {
                    let wanted = StateRequest {
                        name: format!("model-{number}"),
                        ..model(number)
                    };
                    let hold = hold(options, wanted).expect("no lease has it");
                    let mut part = hold.part(options).expect("a file");
                    let pieces = (0..1000).take_while(|_| part.add(&[1; PIECE]).is_ok()).count();
                    let (path, bytes) = part.finish("node1").expect("it lasts");
                    assert_eq!(bytes, (pieces * PIECE) as u64);
                    fs::metadata(path).expect("a state").len() - bytes
                })
            })
            .collect();
        let heads = savers.into_iter().map(|saver| saver.join().expect("no panic"));
        heads.sum::<u64>()
    });
    let lengths = names(&options).into_iter().map(|name| {
        let path = options.directory.join("of-uid:7").join(name);
        fs::metadata(path).expect("a file").len()
    });
    let used: u64 = lengths.sum();
    // `used` may exceed the quota, because a head uses quota only once it is written. `used` may be less, because bytes
    // that one saver has reserved are refused to the others.
    let (least, most) = (options.tenant_bytes / 5, options.tenant_bytes + heads);
    assert!(
        (least..=most).contains(&used),
        "{used} bytes of {}",
        options.tenant_bytes
    );
}

#[test]
fn a_tenant_has_no_more_files_than_are_counted() {
    let (_folder, options) = scene();
    save(&options, b"weights");
    for number in 1..FILES_MAX {
        fs::write(options.directory.join(format!("of-uid:7/{number}.state")), "").expect("written");
    }
    let hold = hold(&options, model(2)).expect("no lease has it");
    let why = hold.part(&options).err().expect("too many files");
    assert!(why.contains("hotlease state rm"), "{why}");
    assert!(
        !options.directory.join("of-uid:7/model.part").exists(),
        "it leaves a file"
    );
}

#[tokio::test]
async fn many_leases_that_wait_for_one_state_hold_no_threads() {
    let (_folder, mut options) = scene();
    options.limit = Duration::from_secs(60);
    let first = hold(&options, model(1)).expect("no lease has it");
    let options = Arc::new(options);
    // As many leases as the runtime has threads for work that blocks.
    let waiting = (0..512).map(|_| {
        let keeper = WorkerStateKeeper::new(Arc::clone(&options), model(2), "node1".into());
        tokio::spawn(async move { keeper.begin().await })
    });
    let waiting: Vec<_> = waiting.collect();
    for _ in 0..16 {
        let other = tokio::task::spawn_blocking(|| ());
        let done = tokio::time::timeout(Duration::from_secs(20), other).await;
        assert!(done.is_ok(), "they hold all threads");
    }
    waiting.iter().for_each(|waiter| waiter.abort());
    drop(first);
}

#[tokio::test]
async fn a_state_that_was_not_restored_is_there_as_soon_as_another_lease_may_have_it() {
    let (_folder, options) = scene();
    save(&options, b"weights");
    let options = Arc::new(options);
    for round in 0..200 {
        let keeper = WorkerStateKeeper::new(Arc::clone(&options), model(1), "node1".into());
        keeper.begin().await.expect("no lease has it");
        let other = Arc::clone(&options);
        let next = std::thread::spawn(move || {
            loop {
                if let Ok(hold) = hold(&other, model(2)) {
                    break hold.take_saved().map(|taken| taken.is_some());
                }
            }
        });
        drop(keeper);
        assert_eq!(next.join().expect("no panic"), Ok(true), "round {round}");
    }
}

#[test]
fn folders_that_others_may_enter_or_rename_in_are_refused() {
    let (folder, options) = scene();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    save(&options, b"weights");
    let theirs = folder.path().join("of-uid:7");
    assert_eq!(fs::metadata(&theirs).expect("made").permissions().mode() & 0o777, 0o700);
    let state = fs::metadata(theirs.join("model.state")).expect("saved");
    assert_eq!(state.permissions().mode() & 0o777, 0o600);
    mode(&theirs, 0o750);
    assert!(hold(&options, model(1)).err().expect("open to others").contains("0700"));
    mode(folder.path(), 0o777);
    assert!(
        check_directory(folder.path())
            .expect_err("anybody's")
            .contains("sticky")
    );
    mode(folder.path(), 0o1777);
    assert_eq!(check_directory(folder.path()), Ok(()));
    assert!(check_directory(&folder.path().join("none")).is_err());
    let link = folder.path().join("of-uid:9");
    std::os::unix::fs::symlink("/", link).expect("a link");
    let elsewhere = StateRequest {
        tenant: "uid:9".into(),
        ..model(1)
    };
    assert!(hold(&options, elsewhere).is_err(), "a link leads out of the directory");
    for tenant in ["../x", "a/b"] {
        let named = StateRequest {
            tenant: tenant.into(),
            ..model(1)
        };
        assert!(hold(&options, named).is_err(), "{tenant}");
    }
}

#[test]
fn states_are_listed_removed_and_expire_and_unused_locks_go() {
    let (_folder, options) = scene();
    save(&options, b"weights");
    fs::write(options.directory.join("of-uid:7/bad.state"), "x").expect("written");
    fs::write(options.directory.join("of-uid:7/gone.lock"), "x").expect("written");
    let listed = listing::list_states(&options.directory).expect("listed");
    let told: Vec<_> = listed
        .iter()
        .map(|state| (&*state.tenant, &*state.name, state.head.is_ok()))
        .collect();
    assert_eq!(told, [("uid:7", "bad", false), ("uid:7", "model", true)]);
    let remove = |name| listing::remove(&options.directory, "uid:7", name);
    assert_eq!(remove("bad").ok(), Some(true));
    assert_eq!(remove("bad").ok(), Some(false));
    assert!(remove("../model").is_err() && listing::remove(&options.directory, "../x", "model").is_err());
    let held = hold(&options, model(1)).expect("no lease has it");
    listing::expire(&options.directory, Duration::from_secs(60));
    assert_eq!(names(&options), ["model.lock", "model.state"]);
    drop(held);
    let old = std::time::SystemTime::now() - Duration::from_secs(90);
    let state = fs::File::options()
        .write(true)
        .open(options.directory.join("of-uid:7/model.state"))
        .expect("a state");
    state.set_modified(old).expect("older");
    listing::expire(&options.directory, Duration::from_secs(60));
    assert_eq!(names(&options), [""; 0]);
}

#[test]
fn only_one_worker_with_one_slot_of_an_agent_with_a_swap_directory_has_a_state() {
    let (_folder, options) = scene();
    let request = AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        tenant: "uid:7".into(),
        state: "model".into(),
        python: Some(PythonRuntime::default()),
        ..AcquireRequest::default()
    };
    let asked = |options, message: &AcquireRequest, sandbox| {
        let request = LeaseRequest::of(message, Duration::from_secs(5))?;
        state_request(options, (message, &request), sandbox, (LeaseId([1; 8]), "n1"))
    };
    let native = AcquireRequest {
        python: None,
        state_format: "words".into(),
        ..request.clone()
    };
    for request in [&request, &native] {
        for sandbox in [Kind::Process, Kind::Namespace, Kind::Container] {
            let found = asked(Some(&options), request, sandbox).expect("good");
            assert_eq!(found.map(|wanted| wanted.name), Some("model".into()));
        }
        let without = asked(None, request, Kind::Process);
        assert!(matches!(without, Err(Rejection::OutOfReach { .. })), "{without:?}");
        let machine = asked(Some(&options), request, Kind::MicroVm);
        assert!(matches!(machine, Err(Rejection::BadRequest { .. })), "{machine:?}");
        let spoiled: [fn(&mut AcquireRequest); 4] = [
            |request| request.workers = 2,
            |request| request.slots_per_worker = 2,
            |request| (request.python, request.state_format) = (None, String::new()),
            |request| request.state = "../model".into(),
        ];
        for (number, spoil) in spoiled.into_iter().enumerate() {
            let mut request = request.clone();
            spoil(&mut request);
            let asked = asked(Some(&options), &request, Kind::Process);
            assert!(
                matches!(asked, Err(Rejection::BadRequest { .. })),
                "{number}: {asked:?}"
            );
        }
    }
}

#[test]
fn libraries_are_one_program_if_they_declare_one_format_and_no_python_program_is() {
    let words = program_of_library("words");
    assert_eq!(
        words,
        program_of_library("words"),
        "the rest of the libraries does not count"
    );
    assert_ne!(words, program_of_library("words_2"));
    let alike = PythonRuntime {
        image: "function library".into(),
        interpreter: std::env::consts::ARCH.into(),
        python: "words".into(),
        ..PythonRuntime::default()
    };
    assert_ne!(words, program_of(&alike, false));
}

#[test]
fn a_program_is_its_code_and_packages_and_not_the_terminal_it_was_started_in() {
    let python = PythonRuntime {
        interpreter: "/usr/bin/python3".into(),
        path: vec!["/a".into(), "b".into()],
        ..PythonRuntime::default()
    };
    let of = |change: fn(&mut PythonRuntime)| {
        let mut python = python.clone();
        change(&mut python);
        program_of(&python, false)
    };
    let same = of(|_| ());
    assert_ne!(same, program_of(&python, true), "code in a sandbox");
    assert_eq!(
        same,
        of(|python| {
            python.directory = "/elsewhere".into();
            python.environment.insert("TERM".into(), "xterm".into());
        })
    );
    let others: [fn(&mut PythonRuntime); 6] = [
        |python| python.interpreter = "/opt/python3".into(),
        |python| python.image = "0".repeat(64),
        |python| python.path = vec!["/ab".into()],
        |python| python.path = vec!["/".into(), "ab".into()],
        |python| python.cloudpickle = "3.1".into(),
        |python| {
            drop(
                python
                    .environment
                    .insert("HOTLEASE_PYTHON_IMPORTS".into(), "numpy".into()),
            )
        },
    ];
    for (number, change) in others.into_iter().enumerate() {
        assert_ne!(of(change), same, "change {number} is not seen");
    }
}
