//! Arguments and environment of each runtime, word by word. The tests of the crate `hotlease-sandbox` run the runtimes
//! that are installed.

use super::*;
use crate::system_calls::ArgumentRule;
use serde_json::json;

fn words(list: &[OsString]) -> Vec<&str> {
    list.iter().map(|word| word.to_str().expect("text")).collect()
}

/// Calls `look` with the description of a Python worker's container, in short.
fn tell<T>(look: impl FnOnce(&ContainerSpec<'_>) -> T) -> T {
    let bind = |source: &str, target: &str, writable| Bind {
        source: source.into(),
        target: target.into(),
        writable,
    };
    look(&ContainerSpec {
        image: Path::new("/images/env"),
        binds: &[
            bind("/media/mounts/0", "/opt/python", false),
            bind("/media/mounts/1", "/data", true),
        ],
        environment: &[("HOME".into(), "/tmp".into()), ("OWN".into(), "a, $b".into())],
        directory: Path::new("/data"),
        command: &["/opt/python/bin/python3", "-m", "hotlease._slot"].map(OsString::from),
    })
}

fn arguments(runtime: Runtime) -> Vec<String> {
    tell(|told| {
        let all = runtime.arguments(told, Path::new("/media"));
        words(&all).into_iter().map(str::to_owned).collect()
    })
}

fn environment(runtime: Runtime) -> Vec<(String, String)> {
    let text = |word: OsString| word.into_string().expect("text");
    let all = tell(|told| runtime.environment(told));
    all.into_iter().map(|(name, value)| (text(name), text(value))).collect()
}

const COMMAND: [&str; 3] = ["/opt/python/bin/python3", "-m", "hotlease._slot"];

#[test]
fn crun_is_given_a_bundle() {
    assert_eq!(
        arguments(Runtime::Crun),
        [
            "--root=/media/state",
            "--cgroup-manager=disabled",
            "--log=/media/log",
            "run",
            "--detach",
            "--no-new-keyring",
            "--pid-file=/media/pid",
            "--bundle=/media",
            "hotlease",
        ]
    );
    let calls = bundle::SystemCalls::new(false).expect("a filter");
    let config = tell(|told| bundle::config(told, &calls)).expect("all of it is text");
    let process = &config["process"];
    assert_eq!(process["args"], json!(COMMAND));
    assert_eq!(process["env"], json!(["HOME=/tmp", "OWN=a, $b"]));
    assert_eq!(
        (&process["cwd"], &process["noNewPrivileges"]),
        (&json!("/data"), &json!(true))
    );
    assert_eq!(process["user"], json!({ "uid": 1000, "gid": 1000 }));
    for set in ["bounding", "effective", "inheritable", "permitted", "ambient"] {
        assert_eq!(process["capabilities"][set], json!([]), "{set}");
    }
    assert_eq!(config["root"], json!({ "path": "/images/env", "readonly": true }));
    let options = |index: usize| config["mounts"][index]["options"].clone();
    assert_eq!(options(0), json!(["rbind", "ro", "nosuid", "nodev"]));
    assert_eq!(options(1), json!(["rbind", "rw", "nosuid", "nodev"]));
    assert_eq!(
        config["linux"]["uidMappings"],
        json!([{ "containerID": 1000, "hostID": 1000, "size": 1 }])
    );
}

#[test]
fn a_bundle_says_only_what_is_text() {
    use std::os::unix::ffi::OsStringExt;
    let calls = bundle::SystemCalls::new(false).expect("a filter");
    let told = ContainerSpec {
        image: Path::new("/"),
        binds: &[],
        environment: &[],
        directory: Path::new("/"),
        command: &[OsString::from_vec(vec![b'/', 0xff])],
    };
    let error = bundle::config(&told, &calls).expect_err("no text");
    assert!(error.to_string().contains("UTF-8"), "{error}");
}

#[test]
fn the_list_of_system_calls_of_a_bundle_is_the_table() {
    for network in [false, true] {
        let section = bundle::system_calls(network);
        assert_eq!(section["defaultErrnoRet"], json!(libc::ENOSYS));
        let rows = section["syscalls"].as_array().expect("rows");
        let mut always = Vec::new();
        let mut conditions = 0;
        for row in rows {
            assert_eq!(row["action"], "SCMP_ACT_ALLOW");
            match row.get("args") {
                Some(args) => {
                    conditions += 1;
                    let args = args.as_array().expect("conditions");
                    let indices: std::collections::HashSet<_> = args.iter().map(|arg| arg["index"].as_u64()).collect();
                    assert_eq!(
                        indices.len(),
                        args.len(),
                        "two conditions on one argument are alternatives: {row}"
                    );
                    assert!(!args.is_empty(), "{row}");
                    assert!(args.iter().all(|arg| arg["op"] == "SCMP_CMP_MASKED_EQ"), "{row}");
                }
                None => always.extend(row["names"].as_array().expect("names").clone()),
            }
        }
        let table: Vec<_> = crate::system_calls::table(network).collect();
        let named = |name: &&serde_json::Value| table.iter().any(|call| call.rules.is_empty() && *name == call.name());
        assert_eq!(always.iter().filter(named).count(), always.len());
        fn comparisons(rule: &ArgumentRule) -> usize {
            match rule {
                ArgumentRule::IsNot(..) => 32,
                ArgumentRule::All(rules) => rules.iter().map(comparisons).product(),
                _ => 1,
            }
        }
        let rules: usize = table.iter().flat_map(|call| call.rules).map(comparisons).sum();
        assert_eq!(conditions, rules);
        let free = table.iter().filter(|call| call.rules.is_empty()).count();
        assert_eq!(always.len(), free);
        let allows = |call: &str, arguments: [u64; 3]| {
            rows.iter().filter(|row| row["names"][0] == call).any(|row| {
                let conditions = row["args"].as_array().expect("conditions");
                conditions.iter().all(|condition| {
                    let number = |name: &str| condition[name].as_u64().expect("a number");
                    arguments[number("index") as usize] & number("value") == number("valueTwo")
                })
            })
        };
        let (inet, stream) = (libc::AF_INET as u64, (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64);
        let netlink = |protocol: i32| allows("socket", [libc::AF_NETLINK as u64, 3, protocol as u64]);
        assert_eq!(allows("socket", [inet, stream, libc::IPPROTO_TCP as u64]), network);
        assert_eq!(netlink(libc::NETLINK_ROUTE), network);
        for protocol in [libc::IPPROTO_MPTCP, libc::IPPROTO_UDPLITE, libc::IPPROTO_SCTP] {
            assert!(
                !allows("socket", [inet, stream, protocol as u64]),
                "protocol {protocol}"
            );
        }
        assert!(!allows("socket", [inet, libc::SOCK_RAW as u64, 0]));
        assert!(!netlink(libc::NETLINK_NETFILTER) && !netlink(libc::NETLINK_INET_DIAG));
        let (level, option) = (libc::SOL_SOCKET as u64, libc::SO_LINGER as u64);
        let high = 1 << 32;
        assert!(!allows("setsockopt", [0, level, option]));
        assert!(
            !allows("setsockopt", [0, level | high, option | high]),
            "the kernel takes 32 bits"
        );
        assert!(allows("setsockopt", [0, level, option + 1]));
        let tcp = |option: i32| allows("setsockopt", [0, libc::IPPROTO_TCP as u64, option as u64]);
        assert!(tcp(libc::SO_LINGER) && tcp(libc::TCP_NODELAY) && !tcp(libc::TCP_ULP));
    }
}

#[test]
fn charliecloud_is_told_by_options_and_its_environment() {
    let expected = [
        "--cd=/data",
        "--no-passwd",
        "--set-env=HOME=$HOTLEASE_INSIDE_0",
        "--set-env=OWN=$HOTLEASE_INSIDE_1",
        "--unset-env=HOTLEASE_INSIDE_0",
        "--unset-env=HOTLEASE_INSIDE_1",
        "--bind=/media/mounts/0:/opt/python",
        "--bind=/media/mounts/1:/data",
        "/images/env",
        "--",
    ];
    assert_eq!(arguments(Runtime::ChRun), [&expected[..], &COMMAND].concat());
    let own = environment(Runtime::ChRun);
    assert!(own.contains(&("HOTLEASE_INSIDE_1".into(), "a, $b".into())), "{own:?}");
    assert!(own.contains(&("USER".into(), "user".into())), "{own:?}");
}

#[test]
fn apptainer_and_singularity_differ_in_names_of_the_environment() {
    let expected = [
        "--silent",
        "exec",
        "--containall",
        "--cleanenv",
        "--no-privs",
        "--pwd=/data",
        "--bind=/media/mounts/0:/opt/python:ro",
        "--bind=/media/mounts/1:/data:rw",
        "/images/env",
    ];
    for (runtime, prefix) in [
        (Runtime::Apptainer, "APPTAINERENV"),
        (Runtime::Singularity, "SINGULARITYENV"),
    ] {
        assert_eq!(arguments(runtime), [&expected[..], &COMMAND].concat());
        let own = environment(runtime);
        assert!(own.contains(&(format!("{prefix}_OWN"), "a, $b".into())), "{own:?}");
        assert!(!own.iter().any(|(name, _)| name == "OWN"), "{own:?}");
    }
}

#[test]
fn podman_passes_the_control_channel_on_as_a_descriptor() {
    let expected = [
        "run",
        "--rm",
        "--read-only",
        "--network=host",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--preserve-fds=1",
        "--workdir=/data",
        "--env=HOTLEASE_INSIDE_0",
        "--env=HOTLEASE_INSIDE_1",
        "--mount=type=bind,source=/media/mounts/0,destination=/opt/python,readonly",
        "--mount=type=bind,source=/media/mounts/1,destination=/data",
        "--entrypoint=/bin/sh",
        "/images/env",
        "-c",
        "command export \"$HOTLEASE_INSIDE_0\" 2>/dev/null; unset HOTLEASE_INSIDE_0; command export \"$HOTLEASE_INSIDE_1\" 2>/dev/null; \
         unset HOTLEASE_INSIDE_1; exec \"$@\" <&3 3<&-",
        "sh",
    ];
    assert_eq!(arguments(Runtime::PodmanHpc), [&expected[..], &COMMAND].concat());
    assert_eq!(Runtime::PodmanHpc.input_at(), 3);
    // Values must not show in a list of processes.
    let own = environment(Runtime::PodmanHpc);
    assert!(
        own.contains(&("HOTLEASE_INSIDE_1".into(), "OWN=a, $b".into())),
        "{own:?}"
    );
}

#[test]
fn no_variable_of_a_tenant_is_one_of_the_runtime() {
    let chosen = [
        "LD_PRELOAD",
        "GLIBC_TUNABLES",
        "PATH",
        "HOME",
        "PYTHONPATH",
        "CONTAINERS_CONF",
        "A",
    ];
    let told: Vec<(OsString, OsString)> = chosen.iter().map(|name| (name.into(), "hostile".into())).collect();
    for runtime in Runtime::ALL {
        let spec = ContainerSpec {
            image: Path::new("/images/env"),
            binds: &[],
            environment: &told,
            directory: Path::new("/"),
            command: &["/bin/true".into()],
        };
        let all = runtime.environment(&spec);
        for (name, value) in &all {
            let is_carried = value.to_string_lossy().contains("hostile");
            let is_chosen = chosen.iter().any(|chosen| name == chosen);
            assert!(!is_carried || !is_chosen, "{runtime:?} itself has {name:?}={value:?}");
        }
        let names: std::collections::BTreeSet<_> = all.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), all.len(), "{runtime:?} has one variable twice: {all:?}");
        let values = runtime.arguments(&spec, Path::new("/media"));
        assert!(
            !values.iter().any(|word| word.to_string_lossy().contains("hostile")),
            "values show in a list of processes: {values:?}"
        );
    }
}

#[test]
fn a_shell_in_a_container_of_podman_gives_variables_their_own_names() {
    let variables = [
        ("PLAIN", "a, $b `c` \"d\"\nnext"),
        ("EMPTY", ""),
        ("PPID", "kept by some shells"),
        ("odd.name", "dropped"),
        ("LAST", "='"),
    ];
    let told: Vec<(OsString, OsString)> = variables
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    let spec = ContainerSpec {
        image: Path::new("/images/env"),
        binds: &[],
        environment: &told,
        directory: Path::new("/"),
        command: &["/usr/bin/env".into(), "-0".into()],
    };
    let arguments = Runtime::PodmanHpc.arguments(&spec, Path::new("/media"));
    let shell = arguments
        .iter()
        .position(|word| word == "-c")
        .expect("a shell's command");
    // Podman starts the container's shell with descriptor 3.
    let ran = std::process::Command::new("/bin/sh")
        .args(["-c", "exec \"$@\" 3</dev/null", "sh", "/bin/sh"])
        .args(&arguments[shell..])
        .env_clear()
        .envs(Runtime::PodmanHpc.environment(&spec))
        .output()
        .expect("a shell");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let seen = String::from_utf8(ran.stdout).expect("text");
    let seen: Vec<&str> = seen.split('\0').collect();
    for (name, value) in [variables[0], variables[1], variables[4]] {
        assert!(seen.contains(&format!("{name}={value}").as_str()), "{name} of {seen:?}");
    }
    assert!(!seen.iter().any(|one| one.starts_with("HOTLEASE_INSIDE")), "{seen:?}");
}

#[test]
fn a_runtime_is_known_by_the_name_of_its_program() {
    for runtime in Runtime::ALL {
        assert_eq!(Runtime::of(Path::new(runtime.name())), Some(runtime));
        assert_eq!(Runtime::of(&Path::new("/opt/bin").join(runtime.name())), Some(runtime));
    }
    for other in ["docker", "crun2", "", "/"] {
        assert_eq!(Runtime::of(Path::new(other)), None, "{other}");
    }
}
