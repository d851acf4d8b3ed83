//! Script of a job of agents.
//!
//! The batch system's description says how the script runs a command on each node, when the job ends, and which part of
//! a node the job has. On each node an identity is issued for the agent, in a directory of its own that is removed when
//! the agent ends.

use super::batch_system::BatchSystem;
use super::records::{AgentSetup, Queue};
use std::borrow::Cow;

/// Line of a job's script behind the last line of the part that runs on each node.
pub(super) const NODE_SCRIPT_END: &str = "HOTLEASE_NODE_SCRIPT_END";

/// A word as a shell reads it.
pub(super) fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@+%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', "'\\''")).into(),
    }
}

/// The script for jobs of this queue.
pub(super) fn script(name: &str, queue: &Queue, system: &BatchSystem) -> String {
    let AgentSetup {
        program,
        manager,
        authority,
        tenants,
        args,
        prologue,
    } = &queue.agents;
    let (program, authority, manager) = (quoted(program), quoted(authority), quoted(manager));
    let tenants = tenants
        .iter()
        .flat_map(|tenant| ["--tenant".to_owned(), tenant.clone()]);
    let args = tenants.chain(args.iter().cloned());
    let args: Vec<String> = args.map(|arg| quoted(&arg).into_owned()).collect();
    let (args, idle, gpus) = (args.join(" "), queue.idle_s, queue.gpus);
    let (time, nodes) = (queue.time_s, queue.nodes_per_job);
    let cores = queue.cores.map_or_else(String::new, |cores| cores.to_string());
    let lines = |text: &str| match text.trim_end() {
        "" => String::new(),
        text => format!("{text}\n"),
    };
    let prologue = lines(&prologue.join("\n"));
    let of_system = &system.script;
    let (end, node, start) = (lines(&of_system.end), lines(&of_system.node), lines(&of_system.start));
    format!(
        r#"#!/bin/bash
# Agents of hotlease, one on each node of this job. Queue {name}; written by `hotlease alloc`.
umask 077
now=$(date +%s) nodes={nodes} end=
{end}# Else the time limit from now: a job's script runs as soon as the job begins.
case $end in '' | *[!0-9]*) end= ;; esac
[ "${{end:-0}}" -gt "$now" ] || end=$((now + {time}))
read -r -d '' agent <<'{NODE_SCRIPT_END}'
dir=$(mktemp -d "${{TMPDIR:-/tmp}}/hotlease-XXXXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
# The agent gets the signals, too: it ends, and this waits for it.
trap : TERM INT HUP
{prologue}cores=$(nproc) requested={cores} gpus={gpus} memory=
[ "${{requested:-$cores}}" -ge "$cores" ] || cores=$requested
IFS=, read -r -a visible <<<"${{CUDA_VISIBLE_DEVICES:-}}"
[ "${{#visible[@]}}" = 0 ] || [ "${{#visible[@]}}" -ge "$gpus" ] || gpus=${{#visible[@]}}
{node}{program} identity issue --dir {authority} --role agent --host "$(hostname)" --days 30 --out "$dir/identity" >/dev/null || exit 1
HOTLEASE_RUNTIME_DIR=$dir/run {program} agent --manager {manager} --listen 0.0.0.0:0 --identity "$dir/identity" \
    --cores "$cores" --gpus "$gpus" ${{memory:+--memory "$memory"}} --until "@$end" --idle-limit {idle}s --drain-within 0s \
    --in-memory {args}
{NODE_SCRIPT_END}
agent="end=$end
$agent"
{start}"#
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

    fn queue(cores: Option<u32>, prologue: &[&str]) -> Queue {
        let value = serde_json::json!({
            "system": "slurm", "priority": 0, "max_nodes": 1, "nodes_per_job": 1, "backlog": 1, "time_s": 600, "idle_s": 9,
            "cores": cores, "gpus": 4, "submit_args": [], "trouble": null, "unneeded_since_ms": null,
            "agents": {"program": "agent_program", "manager": "m", "authority": "/ca", "tenants": ["t"], "args": [], "prologue": prologue},
        });
        serde_json::from_value(value).expect("a queue")
    }

    /// Runs the script for Slurm with stand-ins for other programs; `squeue` is the shell code of the stand-in for
    /// `squeue`. Returns the arguments that the agent was given.
    fn run(cores: Option<u32>, variables: &[(&str, &str)], squeue: &str) -> String {
        run_with_prologue(&[], cores, variables, squeue)
    }

    fn run_with_prologue(prologue: &[&str], cores: Option<u32>, variables: &[(&str, &str)], squeue: &str) -> String {
        let system = BatchSystem::of("slurm", None).expect("a description");
        let folder = tempfile::tempdir().expect("a folder");
        let stands_in = format!(
            "agent_program() {{ [ \"$1\" = identity ] || echo \"$@\"; }}\nsqueue() {{ {squeue}; }}\nnproc() {{ echo 8; }}\n\
             srun() {{ shift 5; \"$@\"; }}\nexec() {{ \"$@\"; }}\nexport -f agent_program nproc\n"
        );
        let output = std::process::Command::new("bash")
            .args(["-c", &(stands_in + &script("q", &queue(cores, prologue), &system))])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("TMPDIR", folder.path())
            .env("SLURM_JOB_ID", "17")
            .envs(variables.iter().copied())
            .output()
            .expect("bash runs");
        let left = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 0, "the agent's directory goes with it");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    fn argument(line: &str, name: &str) -> Option<String> {
        let mut words = line.split_whitespace().skip_while(|word| *word != name);
        words.nth(1).map(str::to_owned)
    }

    #[test]
    fn an_agent_offers_what_its_job_has_of_the_node() {
        let offer_of = |cores, variables: &[(&str, &str)]| {
            let line = run(cores, variables, "false");
            ["--cores", "--gpus", "--memory"].map(|name| argument(&line, name).unwrap_or_default())
        };
        let offer = |variables: &[(&str, &str)]| offer_of(None, variables);
        assert_eq!(offer_of(Some(2), &[]), ["2", "4", ""]);
        assert_eq!(offer_of(Some(9), &[]), ["8", "4", ""]);
        assert_eq!(offer(&[]), ["8", "4", ""]);
        assert_eq!(offer(&[("SLURM_CPUS_ON_NODE", "2")]), ["2", "4", ""]);
        assert_eq!(offer(&[("SLURM_CPUS_ON_NODE", "16")]), ["8", "4", ""]);
        assert_eq!(offer(&[("SLURM_MEM_PER_NODE", "1000")]), ["8", "4", "1000M"]);
        assert_eq!(offer(&[("SLURM_MEM_PER_NODE", "0")]), ["8", "4", ""]);
        let of_cpus = [("SLURM_MEM_PER_CPU", "100"), ("SLURM_CPUS_ON_NODE", "2")];
        assert_eq!(offer(&of_cpus), ["2", "4", "200M"]);
        assert_eq!(offer(&[("SLURM_GPUS_ON_NODE", "1")]), ["8", "1", ""]);
        assert_eq!(offer(&[("CUDA_VISIBLE_DEVICES", "2,3")]), ["8", "2", ""]);
    }

    #[test]
    fn the_lines_of_a_prologue_run_before_the_agent_in_their_order() {
        // The second line sees what the first one has set, and the node's part sees both.
        let prologue = ["export OFFERED=3 # 'quoted\"", "nproc() { echo $OFFERED; }", "false"];
        let line = run_with_prologue(&prologue, None, &[], "false");
        assert_eq!(argument(&line, "--cores").as_deref(), Some("3"), "{line}");
    }

    #[test]
    fn an_agent_knows_the_end_of_its_job() {
        let end = |variables: &[(&str, &str)], squeue: &str| {
            argument(&run(None, variables, squeue), "--until").expect("an end")
        };
        let far = "@4102444800";
        assert_eq!(end(&[("SLURM_JOB_END_TIME", "4102444800")], "false"), far);
        assert_eq!(end(&[], "echo 4102444800"), far);
        // Without such a time, the end is the present time plus the time limit.
        for squeue in ["false", "echo N/A", "echo NONE", "echo 2026-11-27T20:00:00", "echo 17"] {
            let now = time::OffsetDateTime::now_utc().unix_timestamp();
            let end: i64 = end(&[], squeue)[1..].parse().expect("a number");
            assert!((now + 600..now + 3600).contains(&end), "{squeue}: {end}, now {now}");
        }
    }

    #[test]
    fn scripts_of_all_batch_systems_are_bash() {
        for name in ["slurm", "pbs", "lsf", "flux", "htcondor"] {
            let system = BatchSystem::of(name, None).expect("a description");
            let output = std::process::Command::new("bash")
                .args(["-n", "-c", &script("q", &queue(Some(2), &["f() {", "}"]), &system)])
                .output()
                .expect("bash runs");
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{name}: {output:?}"
            );
        }
    }
}
