//! Tests of checkpoints with crashes, damage and other processes.

use crate::decoders;
use hotlease_flow::checkpoint::replay_bytes;
use hotlease_flow::{
    Admission, Checkpoint, CheckpointError, CheckpointRecord, Flow, FlowAction, FlowEvent, FlowLimits, FlowTask,
    MemoKey, ResultPlace, RunOutcome, WorkerIndex,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.checkpoint");
    (folder, path)
}

fn key(number: u8) -> MemoKey {
    MemoKey([number; 32])
}

fn write(path: &Path, values: &[(u8, &[u8])]) {
    let (mut checkpoint, _) = Checkpoint::open(path).expect("opens");
    for (number, value) in values {
        checkpoint.append(key(*number), value).expect("appends");
    }
    checkpoint.sync().expect("syncs");
}

/// Records of a file, and the number of damaged bytes.
fn read(path: &Path) -> (Vec<CheckpointRecord>, u64) {
    let (mut records, mut damaged) = (Vec::new(), 0);
    for found in Checkpoint::read(path).expect("reads") {
        match found {
            Ok(record) => records.push(record),
            Err(CheckpointError::Damaged { bytes, .. }) => damaged += bytes,
            Err(other) => panic!("{other}"),
        }
    }
    (records, damaged)
}

#[test]
fn records_of_any_size_are_there_in_order() {
    let (_folder, path) = folder();
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
    write(&path, &[(1, b""), (2, &large), (3, b"three")]);
    write(&path, &[(1, b"again")]);
    let (records, damaged) = read(&path);
    assert_eq!(damaged, 0);
    let found: Vec<_> = records.into_iter().map(|record| (record.key, record.value)).collect();
    assert_eq!(found[1].1, large, "a large one comes back whole");
    let small: Vec<_> = [0, 2, 3].into_iter().map(|at| found[at].clone()).collect();
    assert_eq!(
        small,
        [
            (key(1), vec![]),
            (key(3), b"three".to_vec()),
            (key(1), b"again".to_vec())
        ]
    );
}

#[test]
fn the_format_is_the_one_that_is_written_down() {
    let (_folder, path) = folder();
    write(&path, &[(1, b"one"), (2, b"two")]);
    let bytes = fs::read(&path).expect("a file");
    let id: [u8; 16] = bytes[16..32].try_into().expect("16 bytes");
    let mut expected = decoders::file_header(id);
    for (number, value) in [(1, b"one"), (2, b"two")] {
        let next = decoders::record(&id, expected.len(), key(number), value);
        expected.extend(next);
    }
    assert_eq!(bytes, expected);
}

#[test]
fn a_file_cut_anywhere_keeps_what_is_before_and_takes_more() {
    let (_folder, path) = folder();
    write(&path, &[(1, b"one"), (2, &[2; 500]), (3, &[3; 100])]);
    let whole = fs::read(&path).expect("a file");
    let ends: Vec<u64> = read(&path)
        .0
        .iter()
        .map(|record| record.offset + 64 + record.value.len() as u64)
        .collect();
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).expect("cut");
        write(&path, &[(9, b"after the crash")]);
        let (records, damaged) = read(&path);
        let kept = ends.iter().filter(|end| **end <= cut as u64).count();
        assert_eq!(records.len(), kept + 1, "cut at {cut}");
        assert_eq!(records[kept].key, key(9), "cut at {cut}: what follows is found");
        let last = ends[..kept].last().copied().unwrap_or(64);
        assert_eq!(damaged, (cut as u64).saturating_sub(last), "cut at {cut}");
    }
}

#[test]
fn flipped_bits_cost_only_the_record_in_which_they_are() {
    let (_folder, path) = folder();
    let values: Vec<Vec<u8>> = (0..40_u8).map(|number| vec![number; 7 * usize::from(number)]).collect();
    let pairs: Vec<_> = values
        .iter()
        .enumerate()
        .map(|(at, value)| (at as u8, &value[..]))
        .collect();
    write(&path, &pairs);
    let whole = fs::read(&path).expect("a file");
    let before = read(&path).0;
    let seed = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..500 {
        let mut bytes = whole.clone();
        let at = random.random_range(64..bytes.len());
        bytes[at] ^= 1 << random.random_range(0..8);
        fs::write(&path, &bytes).expect("flipped");
        let hit = |record: &&CheckpointRecord| {
            let begin = record.offset as usize;
            !(begin..begin + 64 + record.value.len()).contains(&at)
        };
        let expected: Vec<_> = before.iter().filter(hit).cloned().collect();
        let (records, damaged) = read(&path);
        assert_eq!(records, expected, "byte {at}");
        assert!(damaged > 0, "the damage is told");
    }
}

#[test]
fn a_record_behind_long_damage_is_found_wherever_it_begins() {
    // Lengths around the size of the search window.
    for damage in (65_536 - 70..65_536 + 10).chain([0, 1, 200_000]) {
        let id = [3; 16];
        let mut file = decoders::file_header(id);
        file.resize(file.len() + damage, b'H');
        let next = decoders::record(&id, file.len(), key(1), b"one");
        file.extend(next);
        let found = replay_bytes(&file, Path::new("bytes")).expect("a checkpoint");
        let records = found.filter_map(Result::ok).count();
        assert_eq!(records, 1, "behind {damage} damaged bytes");
    }
}

#[test]
fn one_program_writes_a_checkpoint_while_others_read() {
    let (_folder, path) = folder();
    let (mut writer, _) = Checkpoint::open(&path).expect("opens");
    match Checkpoint::open(&path) {
        Err(CheckpointError::InUse { .. }) => {}
        other => panic!("a second writer was let in: {other:?}"),
    }
    writer.append(key(1), b"one").expect("appends");
    assert_eq!(read(&path).0.len(), 0, "gathered, not written");
    writer.flush().expect("writes");
    assert_eq!(read(&path).0.len(), 1);
    drop(writer);
    Checkpoint::open(&path).expect("the lock goes with its holder");
}

#[test]
fn no_other_file_is_touched() {
    let (_folder, path) = folder();
    let newer = {
        let mut bytes = decoders::file_header([1; 16]);
        bytes[8] = 2;
        bytes
    };
    let mut damaged = decoders::file_header([1; 16]);
    damaged[20] ^= 1;
    let cases: [(&[u8], &str); 4] = [
        (b"some text of mine", "no checkpoint"),
        (&[0; 200], "no checkpoint"),
        (&newer, "version 2"),
        (&damaged, "damaged"),
    ];
    for (bytes, what) in cases {
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("private");
        let error = Checkpoint::open(&path).expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
        assert_eq!(fs::read(&path).expect("a file"), bytes, "{what}: it was changed");
    }
}

#[test]
fn a_file_that_others_can_write_is_not_believed() {
    let (folder, path) = folder();
    write(&path, &[(1, b"one")]);
    assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&path, Permissions::from_mode(0o664)).expect("opened up");
    assert!(matches!(Checkpoint::open(&path), Err(CheckpointError::Unsafe { .. })));
    assert!(matches!(Checkpoint::read(&path), Err(CheckpointError::Unsafe { .. })));
    let error = Checkpoint::open(&folder.path().join("missing/run")).expect_err("no folder");
    assert!(error.to_string().contains("missing/run"), "{error}");
}

#[test]
fn a_failed_write_costs_what_was_gathered_and_nothing_else() {
    const FILE: &str = "HOTLEASE_TEST_CHECKPOINT";
    if let Some(path) = std::env::var_os(FILE) {
        // Runs in a process whose files cannot grow over 4 KiB.
        let (mut checkpoint, _) = Checkpoint::open(Path::new(&path)).expect("opens");
        checkpoint.append(key(2), &[2; 500]).expect("gathered");
        checkpoint.sync().expect("there is room");
        checkpoint.append(key(3), &[3; 10_000]).expect("gathered");
        match checkpoint.flush() {
            Err(CheckpointError::Io { what: "write to", .. }) => {}
            other => panic!("10,000 bytes were written to 4,096: {other:?}"),
        }
        checkpoint.append(key(4), b"four").expect("gathered");
        checkpoint.sync().expect("there is room for this one");
        return;
    }
    let (_folder, path) = folder();
    write(&path, &[(1, b"one")]);
    let limited =
        "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact files::a_failed_write_costs_what_was_gathered_and_nothing_else";
    let test = std::env::current_exe().expect("this program");
    let mut child = Command::new("sh");
    let output = child
        .arg("-c")
        .arg(limited)
        .arg(test)
        .env(FILE, &path)
        .output()
        .expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let (records, damaged) = read(&path);
    let keys: Vec<_> = records.iter().map(|record| record.key).collect();
    assert_eq!((keys, damaged), (vec![key(1), key(2), key(4)], 0));
}

#[test]
fn a_second_run_computes_nothing_again() {
    let (_folder, path) = folder();
    let mut ran = Vec::new();
    for _ in 0..2 {
        let (mut checkpoint, replay) = Checkpoint::open(&path).expect("opens");
        let mut flow: Flow<u8, Vec<u8>, ()> = Flow::new(FlowLimits::default());
        let mut actions = Vec::new();
        for record in replay {
            let record = record.expect("nothing is damaged");
            let bytes = record.value.len() as u64;
            flow.restore(record.key, record.value, bytes, &mut actions)
                .expect("restored");
        }
        let worker = WorkerIndex(0);
        flow.step(FlowEvent::WorkerUp { worker, credits: 4 }, &mut actions);
        let mut count = 0;
        for number in 0..50 {
            let task = FlowTask::new(number).key(key(number));
            let admission = flow.submit(task, &[], &mut actions).expect("there is room");
            let task = admission.task();
            if let Admission::Accepted(_) = admission {
                for action in std::mem::take(&mut actions) {
                    if let FlowAction::Run { task, attempt, .. } = action {
                        count += 1;
                        let result = vec![number; 3];
                        checkpoint.append(key(number), &result).expect("appends");
                        let outcome = RunOutcome::Done {
                            result,
                            bytes: 3,
                            place: ResultPlace::Here,
                        };
                        flow.step(FlowEvent::Ended { task, attempt, outcome }, &mut actions);
                    }
                }
            }
            assert_eq!(flow.result(task), Some(&vec![number; 3]));
        }
        ran.push(count);
    }
    assert_eq!(ran, [50, 0]);
}
