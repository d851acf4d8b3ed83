//! The OCI bundle that crun gets.

use super::ContainerSpec;
use crate::filter;
use crate::root::USER;
use crate::system_calls::{self, ArgumentRule};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

/// Mask for the low half of an argument, which is all that the kernel reads of an `int`.
const INT: u64 = 0xffff_ffff;

/// Annotation by which crun takes a compiled filter of system calls. Otherwise crun would compile the section at each
/// start, which takes longer than all its other steps.
const COMPILED: &str = "run.oci.seccomp_bpf_data";

/// System calls that a container may make.
pub(crate) struct SystemCalls {
    /// The calls as an OCI section, for tools that do not know the annotation.
    section: Value,
    /// The compiled filter, which is the same as in sandboxes of kind `namespace`.
    compiled: String,
}

impl SystemCalls {
    pub fn new(network: bool) -> Result<Self, String> {
        let mut bytes = Vec::new();
        for step in filter::allowing(system_calls::table(network))? {
            bytes.extend(step.code.to_ne_bytes());
            bytes.extend([step.jt, step.jf]);
            bytes.extend(step.k.to_ne_bytes());
        }
        Ok(Self {
            section: system_calls(network),
            compiled: STANDARD.encode(bytes),
        })
    }
}

/// Makes the `config.json` of a container.
///
/// The bundle lists no namespaces of processes, network, IPC, host name and control groups, no resource limits and no
/// session keyring: the runtime is started inside of them. It needs no masked paths, because `/proc` contains only the
/// container's own processes.
pub(crate) fn config(told: &ContainerSpec<'_>, system_calls: &SystemCalls) -> io::Result<Value> {
    let arguments: Vec<&str> = told.command.iter().map(|word| text(word)).collect::<Result<_, _>>()?;
    let mut environment = Vec::new();
    for (name, value) in told.environment {
        environment.push(format!("{}={}", text(name)?, text(value)?));
    }
    let mut mounts = Vec::new();
    for bind in told.binds {
        let access = if bind.writable { "rw" } else { "ro" };
        mounts.push(json!({
            "type": "bind",
            "source": text(bind.source.as_os_str())?,
            "destination": text(bind.target.as_os_str())?,
            "options": ["rbind", access, "nosuid", "nodev"],
        }));
    }
    let itself = json!([{ "containerID": USER, "hostID": USER, "size": 1 }]);
    Ok(json!({
        "ociVersion": "1.0.0",
        "process": {
            "terminal": false,
            "user": { "uid": USER, "gid": USER },
            "args": arguments,
            "env": environment,
            "cwd": text(told.directory.as_os_str())?,
            "capabilities": { "bounding": [], "effective": [], "inheritable": [], "permitted": [], "ambient": [] },
            "noNewPrivileges": true,
        },
        "root": { "path": text(told.image.as_os_str())?, "readonly": true },
        "mounts": mounts,
        "linux": {
            "namespaces": [{ "type": "user" }, { "type": "mount" }],
            "uidMappings": itself,
            "gidMappings": itself,
            "seccomp": system_calls.section,
        },
        "annotations": { COMPILED: system_calls.compiled },
    }))
}

/// The table of system calls as an OCI section.
pub fn system_calls(network: bool) -> Value {
    let mut always = Vec::new();
    let mut rows = Vec::new();
    for call in system_calls::table(network) {
        if call.rules.is_empty() {
            always.push(call.name());
        }
        for rule in call.rules {
            for comparisons in alternatives(rule) {
                let args = comparisons.iter().map(|(index, mask, value)| {
                    json!({ "index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" })
                });
                rows.push(json!({
                    "names": [call.name()],
                    "action": "SCMP_ACT_ALLOW",
                    "args": args.collect::<Vec<_>>(),
                }));
            }
        }
    }
    rows.push(json!({ "names": always, "action": "SCMP_ACT_ALLOW" }));
    json!({
        // Fails like a call that the kernel does not have.
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": libc::ENOSYS,
        "architectures": [ARCHITECTURE],
        "syscalls": rows,
    })
}

/// Index of an argument, a mask, and the value under this mask.
type Comparison = (u8, u64, u64);

/// Sets of comparisons of arguments under a mask. The rule holds if all comparisons of one set hold. The kernel reads
/// 32 bits of an `int`, and only comparisons under a mask can compare just these bits. An argument differs from the
/// stated value if any bit differs, so `IsNot` has a set for each bit.
fn alternatives(rule: &ArgumentRule) -> Vec<Vec<Comparison>> {
    match *rule {
        ArgumentRule::Is(index, value) => vec![vec![(index, INT, value)]],
        ArgumentRule::IsNot(index, value) => {
            let bits = (0..u32::BITS).map(|bit| 1 << bit);
            bits.map(|bit| vec![(index, bit, !value & bit)]).collect()
        }
        ArgumentRule::HasNone(index, bits) => vec![vec![(index, bits, 0)]],
        ArgumentRule::MaskedIs(index, bits, value) => vec![vec![(index, bits, value)]],
        ArgumentRule::All(rules) => rules.iter().fold(vec![Vec::new()], |sets, rule| {
            let further = alternatives(rule);
            let joined =
                |set: &Vec<Comparison>| further.iter().map(|more| [&set[..], more].concat()).collect::<Vec<_>>();
            sets.iter().flat_map(joined).collect()
        }),
    }
}

fn text(word: &OsStr) -> io::Result<&str> {
    word.to_str().ok_or_else(|| {
        let what = format!("{} is no UTF-8, which a bundle is written in", word.to_string_lossy());
        io::Error::new(io::ErrorKind::InvalidInput, what)
    })
}
