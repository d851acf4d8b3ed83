//! Script of a job of agents.
//!
//! It runs the agents in a step (`srun`): the batch system tells the processes of a step at once that the job ends, and a
//! plain batch script only later or not at all. On each node an identity is issued for the agent in a directory of its own,
//! which goes with it.

use super::records::{AgentSetup, Queue};
use std::borrow::Cow;

/// A word as a shell reads it.
fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@+%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', "'\\''")).into(),
    }
}

/// The script for jobs of this queue.
pub(super) fn script(name: &str, queue: &Queue) -> String {
    let AgentSetup {
        program,
        manager,
        authority,
        tenants,
        args,
    } = &queue.agents;
    let (program, authority, manager) = (quoted(program), quoted(authority), quoted(manager));
    let gpus = ["--gpus".to_owned(), queue.gpus.to_string()];
    let tenants = tenants
        .iter()
        .flat_map(|tenant| ["--tenant".to_owned(), tenant.clone()]);
    let args = tenants
        .chain(gpus.into_iter().filter(|_| queue.gpus > 0))
        .chain(args.iter().cloned());
    let args: Vec<String> = args.map(|arg| quoted(&arg).into_owned()).collect();
    let (args, idle) = (args.join(" "), queue.idle_s);
    format!(
        r#"#!/bin/bash
# Agents of hotlease, one on each node of this job. Queue {name}; written by `hotlease alloc`.
umask 077
end=${{SLURM_JOB_END_TIME:-}}
[ -n "$end" ] || end=$(date -d "$(squeue --noheader --job="$SLURM_JOB_ID" --format=%e)" +%s)
export HOTLEASE_ALLOC_END=$end
read -r -d '' agent <<'NODE'
dir=$(mktemp -d "${{TMPDIR:-/tmp}}/hotlease-XXXXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
# The agent gets the signals, too: it ends, and this waits for it.
trap : TERM INT HUP
cores=$(nproc)
[ "${{SLURM_CPUS_ON_NODE:-$cores}}" -ge "$cores" ] || cores=$SLURM_CPUS_ON_NODE
{program} identity issue --dir {authority} --role agent --host "$(hostname)" --days 30 --out "$dir/identity" >/dev/null || exit 1
HOTLEASE_RUNTIME_DIR=$dir/run {program} agent --manager {manager} --listen 0.0.0.0:0 --identity "$dir/identity" \
    --cores "$cores" --until "@$HOTLEASE_ALLOC_END" --idle-limit {idle}s --drain-within 0s --in-memory {args}
NODE
exec srun --ntasks-per-node=1 --cpu-bind=none --mpi=none --export=ALL --kill-on-bad-exit=0 bash -c "$agent"
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted("https://n1:7070"), "https://n1:7070");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
