//! Isolation of functions, tested by attempts to escape (`hotlease sandbox test`).

use hotlease_tests::platform::program;
use nix::unistd::{Uid, geteuid};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Programs that `hotlease sandbox test` needs in its folder.
const PROGRAMS: [&str; 5] = [
    "hotlease",
    "hotlease-escape",
    "hotlease-lab",
    "hotlease-nursery",
    "hotlease-worker",
];
/// A user with no rights at all.
const NOBODY: u32 = 65534;

/// Result of a run: its rows, its totals, whether it succeeded.
struct Run {
    rows: Vec<Value>,
    totals: Value,
    success: bool,
}

impl Run {
    fn names(&self, verdict: &str) -> Vec<String> {
        let rows = self.rows.iter().filter(|row| row["verdict"] == verdict);
        rows.map(|row| format!("{}: {}", row["attempt"], row["how"])).collect()
    }

    /// Whether the run says that this node cannot limit the resource of that name.
    fn lacks(&self, name: &str) -> bool {
        let lacking = self.totals["lacking"].as_array().expect("what it cannot limit");
        let mut lacking = lacking.iter().filter_map(Value::as_str);
        lacking.any(|what| what.starts_with(name))
    }
}

/// Runs the corpus as this user (`None`: as the user that runs the tests), and checks that nothing is left of it. `Err`
/// says why this machine has no such sandboxes.
fn run(kind: &str, user: Option<u32>) -> Result<Run, String> {
    run_with(kind, user, &[])
}

fn run_with(kind: &str, user: Option<u32>, options: &[&str]) -> Result<Run, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut hotlease = program("hotlease");
    if user.is_some() {
        // Copies the programs where this user can read them, whichever user built them.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
        for name in PROGRAMS {
            fs::copy(program(name), folder.path().join(name)).expect("a copy of the program");
        }
        hotlease = folder.path().join("hotlease");
    }
    let mut command = Command::new(hotlease);
    command
        .args(["sandbox", "test", "--kind", kind, "--json"])
        .args(options)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let child = command.spawn().expect("hotlease sandbox test");
    let pid = child.id();
    let output = child.wait_with_output().expect("its output");
    let text = String::from_utf8(output.stdout).expect("text");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    nothing_is_left_of(pid);
    if errors.contains("there are no sandboxes of kind") {
        return Err(errors);
    }
    let mut rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object a line"))
        .collect();
    let totals = rows.pop().unwrap_or_else(|| panic!("it printed nothing: {errors}"));
    assert_eq!(totals["kind"], kind, "{errors}");
    Ok(Run {
        rows,
        totals,
        success: output.status.success(),
    })
}

/// Checks that no process, file, segment or key is left whose name contains this run's.
fn nothing_is_left_of(pid: u32) {
    let mark = format!("{pid:08x}");
    let has_it = |name: &str| name.contains("hotlease-escape") && name.contains(&mark);
    for folder in [
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        "/run/lock",
        "/etc",
        "/usr/lib",
        "/opt",
        "/srv",
    ] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            assert!(!has_it(&name), "{} was left", entry.path().display());
        }
    }
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(!has_it(&line), "process {} was left: {line}", entry.path().display());
    }
    let keys = fs::read_to_string("/proc/keys").unwrap_or_default();
    // The kernel removes revoked, dead and invalidated keys (R, D, i) in its own time.
    let lives = |key: &&str| {
        key.split_whitespace()
            .nth(1)
            .is_some_and(|flags| !flags.contains(['R', 'D', 'i']))
    };
    assert!(!keys.lines().filter(lives).any(has_it), "a key was left:\n{keys}");
}

/// Capabilities that a run as this user has.
fn capabilities(user: Option<u32>) -> u64 {
    if user.is_some_and(|user| user != 0) {
        return 0;
    }
    let status = fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(line.expect("capabilities").trim(), 16).expect("a number")
}

/// Names of capabilities, and their numbers in the kernel.
const CAPABILITIES: [(&str, u32); 21] = [
    ("cap_chown", 0),
    ("cap_dac_override", 1),
    ("cap_dac_read_search", 2),
    ("cap_setgid", 6),
    ("cap_setuid", 7),
    ("cap_net_admin", 12),
    ("cap_net_raw", 13),
    ("cap_ipc_lock", 14),
    ("cap_sys_module", 16),
    ("cap_sys_rawio", 17),
    ("cap_sys_chroot", 18),
    ("cap_sys_ptrace", 19),
    ("cap_sys_pacct", 20),
    ("cap_sys_admin", 21),
    ("cap_sys_boot", 22),
    ("cap_sys_nice", 23),
    ("cap_sys_resource", 24),
    ("cap_sys_time", 25),
    ("cap_mknod", 27),
    ("cap_setfcap", 31),
    ("cap_syslog", 34),
];

/// Checks that each attempt that must get out of a sandbox of kind `process` gets out: an attempt that cannot get out
/// there proves nothing in other kinds.
fn has_teeth(user: Option<u32>) {
    let run = run("process", user).expect("sandboxes of kind process are everywhere");
    let capabilities = capabilities(user);
    // Where there are control groups, they limit the memory of each kind.
    let holds_memory = !run.lacks("memory");
    let mut escaped = 0;
    for row in &run.rows {
        let must = match row["outside"].as_str().expect("who gets out") {
            "any process" => true,
            "no process" => false,
            name => {
                let number = CAPABILITIES.iter().find(|(known, _)| *known == name);
                let (_, number) = number.unwrap_or_else(|| panic!("{name} is no capability"));
                capabilities & (1 << number) != 0
            }
        };
        let verdict = row["verdict"].as_str().expect("a verdict");
        // A machine that lacks something is no fault of the attempt; the row says what the attempt needs.
        let excused = verdict == "untried" && !row["needs"].is_null();
        let floods_memory = row["attempt"]
            .as_str()
            .is_some_and(|name| name.starts_with("flood-memory"));
        let held = floods_memory && holds_memory;
        assert!(
            !must || verdict == "escaped" || excused || held,
            "it must get out, and cannot: {row}"
        );
        assert_ne!(verdict, "failed", "{row}");
        escaped += usize::from(verdict == "escaped");
    }
    assert!(!run.success, "escapes are a failure");
    assert_eq!(run.totals["escaped"], escaped);
    assert!(escaped >= 60, "only {escaped} attempts have teeth on this machine");
    eprintln!("untried here: {:#?}", run.names("untried"));
}

#[test]
fn attempts_to_escape_succeed_without_a_sandbox() {
    has_teeth(None);
    if geteuid() == Uid::from_raw(0) {
        has_teeth(Some(NOBODY));
    }
}

/// Checks that nothing gets out of a sandbox of this kind.
fn holds(kind: &str, user: Option<u32>) {
    let run = match run(kind, user) {
        Ok(run) => run,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let lacking = run.totals["lacking"].as_array().expect("what it cannot limit");
    let escaped = run.names("escaped").into_iter().filter(|row| {
        // Without control groups, which a user who is not root may not have, some limits cannot be enforced. The run
        // says so.
        let is_limit = row.starts_with("\"flood-") || row.starts_with("\"processors");
        lacking.is_empty() || !is_limit
    });
    let faults: Vec<String> = escaped.chain(run.names("failed")).collect();
    assert!(faults.is_empty(), "a sandbox of kind {kind} does not hold: {faults:#?}");
    assert_eq!(run.success, run.names("escaped").is_empty());
    let contained = run.names("contained").len();
    assert!(contained >= 60, "only {contained} attempts were made");
    eprintln!("untried here: {:#?}", run.names("untried"));
    eprintln!("{}", run.totals);
}

#[test]
fn nothing_escapes_from_a_namespace() {
    holds("namespace", None);
    if geteuid() == Uid::from_raw(0) {
        holds("namespace", Some(NOBODY));
    }
}

/// Tests that a granted network gives access to nothing else. Abstract sockets are left out: whether they can be shut off
/// depends on the kernel.
#[test]
fn nothing_but_the_network_is_reached_where_it_is_granted() {
    let only = [
        "tcp-",
        "udp-",
        "listen",
        "route-",
        "system-sockets",
        "socket",
        "netlink-",
        "mptcp",
        "vsock",
        "rare-protocols",
        "control-",
        "kernel-crypto",
    ];
    let options: Vec<&str> = ["--network"]
        .into_iter()
        .chain(only.iter().flat_map(|name| ["--only", *name]))
        .collect();
    let run = match run_with("namespace", None, &options) {
        Ok(run) => run,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let faults = [run.names("escaped"), run.names("failed")].concat();
    let faults: Vec<_> = faults
        .iter()
        .filter(|row| !row.starts_with("\"abstract-socket"))
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(run.totals["network"], true);
    let how = |name: &str| {
        let row = run
            .rows
            .iter()
            .find(|row| row["attempt"] == name)
            .expect("it was chosen");
        format!("{}: {}", row["verdict"], row["how"])
    };
    assert_eq!(how("tcp-loopback"), "\"untried\": \"the network is granted\"");
    let protocols = how("tcp-protocols");
    assert!(
        protocols == "\"contained\": \"setsockopt: ENOSYS\"" || protocols.starts_with("\"untried\": \"needs Linux"),
        "{protocols}"
    );
    assert!(run.names("contained").len() >= 8, "{:#?}", run.rows);
}

/// A test with `--pace 1.5`, on a machine that has nothing else to do, asserts how fast a neighbour is beside floods.
/// On any machine this test checks that the pace is measured and judged: it uses limits that any pace meets, and limits
/// that no pace meets.
#[test]
fn floods_that_slow_the_neighbour_down_by_more_than_the_pace_are_a_failure_that_names_them() {
    let paced = |limit: &str| {
        let floods = ["--only", "flood-threads", "--only", "flood-tmp"];
        let output = Command::new(program("hotlease"))
            .args(["sandbox", "test", "--json", "--pace", limit])
            .args(floods)
            .current_dir("/")
            .output()
            .expect("hotlease sandbox test");
        let text = String::from_utf8(output.stdout).expect("text");
        let rows = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let rows: Vec<Value> = rows.collect();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), rows, errors)
    };
    let (success, rows, errors) = paced("1000");
    if rows.is_empty() {
        assert!(
            errors.contains("no sandboxes of kind") || errors.contains("needs a processor"),
            "{errors}"
        );
        return eprintln!("skipped: {errors}");
    }
    let contained = rows.iter().filter(|row| row["verdict"] == "contained");
    if contained.count() < 2 {
        return eprintln!("skipped: no limits here: {rows:?}");
    }
    let totals = rows.last().expect("totals");
    assert!(success && totals["slowing"] == serde_json::json!([]), "{errors}");
    for row in rows.iter().filter(|row| row["neighbour"].is_object()) {
        let pace = &row["neighbour"];
        assert_eq!(pace["rounds"], 5, "{row}");
        assert!(pace["times_p99"].as_f64() > Some(0.0), "{row}");
    }
    let (success, rows, errors) = paced("0.000001");
    let totals = rows.last().expect("totals");
    assert!(!success, "{totals}");
    let slowing = totals["slowing"].as_array().expect("a list");
    assert_eq!(slowing.len(), 2, "{totals}");
    for name in slowing {
        assert!(
            errors.contains(name.as_str().expect("a name")),
            "{name} is not named: {errors}"
        );
    }
}

/// Answer of `hotlease sandbox hand-over`, and whether it succeeded; `Err` says why there are no such sandboxes here.
fn handed_over(kind: &str, times: u32) -> Result<(Value, bool), String> {
    let child = Command::new(program("hotlease"))
        .args([
            "sandbox",
            "hand-over",
            "--kind",
            kind,
            "--json",
            "--times",
            &times.to_string(),
        ])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hotlease sandbox hand-over");
    let pid = child.id();
    let output = child.wait_with_output().expect("its output");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    nothing_is_left_of(pid);
    if errors.contains("there are no sandboxes of kind") {
        return Err(errors);
    }
    let answer = serde_json::from_slice(&output.stdout);
    let answer = answer.unwrap_or_else(|error| panic!("{error}: {errors}"));
    Ok((answer, output.status.success()))
}

#[test]
fn no_tenant_finds_data_of_earlier_tenants() {
    // The search finds traces of an earlier tenant where nothing removes them.
    let (answer, success) = handed_over("process", 2).expect("sandboxes of kind process are everywhere");
    let found = answer["found"].to_string();
    for what in ["/dev/shm/", "/tmp/", "process ", "System V segment", "abstract socket"] {
        assert!(found.contains(what), "{what}: {found}");
    }
    assert!(!success);
    match handed_over("namespace", 50) {
        Ok((answer, success)) => {
            assert_eq!(answer["found"], Value::Array(Vec::new()));
            assert_eq!((answer["times"].as_u64(), success), (Some(50), true));
        }
        Err(why) => eprintln!("skipped: {why}"),
    }
}

/// Some attempts of each theme, to save time; a site makes them all.
const SOME: [&str; 16] = [
    "--only",
    "proc-mem",
    "--only",
    "inherited",
    "--only",
    "sysv-shm",
    "--only",
    "keyring-user",
    "--only",
    "file-",
    "--only",
    "abstract",
    "--only",
    "user",
    "--only",
    "flood-memory",
];

#[test]
fn nothing_escapes_from_a_container() {
    for (runtime, known) in [
        ("crun", &[][..]),
        // Charliecloud lacks a capability that this needs, and leaves its own mark: see docs/sandboxes.md.
        ("ch-run", &["\"capability-bound\"", "\"own-environment\""]),
    ] {
        let more = [
            "--sandbox-container",
            runtime,
            "--only",
            "capability-",
            "--only",
            "own-",
            "--only",
            "mount",
            "--only",
            "outlive",
        ];
        let run = match run_with("container", None, &[&SOME[..], &more].concat()) {
            Ok(run) => run,
            Err(why) => {
                eprintln!("skipped: {why}");
                continue;
            }
        };
        let limits = run.lacks("memory");
        let escaped = run.names("escaped").into_iter();
        let escaped: Vec<String> = escaped
            .filter(|row| !limits || !row.starts_with("\"flood-"))
            .filter(|row| !known.iter().any(|known| row.starts_with(known)))
            .chain(run.names("failed"))
            .collect();
        assert!(
            escaped.is_empty(),
            "a container of {runtime} does not hold: {escaped:#?}"
        );
        let contained = run.names("contained").len();
        assert!(contained >= 30, "only {contained} attempts were made");
        eprintln!("{runtime}: {}", run.totals);
    }
}

#[test]
fn programs_for_attempts_are_found_where_they_are_installed() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str, under: &str| {
        let to = folder.path().join(under);
        fs::create_dir_all(&to).expect("a folder");
        fs::copy(program(name), to.join(name)).expect("a copy of the program");
        to.join(name)
    };
    let hotlease = place("hotlease", "bin");
    let attempt = |hotlease: &Path| {
        let output = Command::new(hotlease)
            .args([
                "sandbox",
                "test",
                "--kind",
                "process",
                "--only",
                "own-environment",
                "--json",
            ])
            .output()
            .expect("hotlease");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    place("hotlease-worker", "libexec/hotlease");
    let (status, errors) = attempt(&hotlease);
    assert_eq!(status, Some(1), "{errors}");
    assert!(
        errors.contains("hotlease-lab") && errors.contains("make build"),
        "{errors}"
    );
    place("hotlease-lab", "libexec/hotlease");
    let (status, errors) = attempt(&hotlease);
    assert_eq!(status, Some(1), "{errors}");
    assert!(
        errors.contains("hotlease-escape") && errors.contains("make build"),
        "{errors}"
    );
    place("hotlease-escape", "libexec/hotlease");
    assert_eq!(attempt(&hotlease), (Some(0), String::new()));
}
