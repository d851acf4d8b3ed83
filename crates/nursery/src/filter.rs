//! Filters of system calls, compiled from the tables of [`system_calls`](crate::system_calls).
//!
//! Filters of `seccompiler` compare a number with one call after the other: 1,200 steps to the last of 230 calls. This
//! costs time in the kernel: when a filter is installed, the kernel runs the filter once for every existing call to
//! find the calls that are always allowed (`seccomp_cache_prepare`, Linux 5.11). Measured: 0.56 ms for each program
//! that is started, 0.18 ms with the method below.
//! So consecutive numbers with the same decision form a run, and the runs are put into a tree of comparisons. If the
//! decision depends on a call's arguments, the tree ends in a filter that `seccompiler` made for that call:
//!
//! ```text
//! number >= 157 ?  no   number >= 155 ?  no   ...
//!                                        yes  does not exist
//!                  yes  number >= 158 ?  no   filter of prctl
//!                                        yes  ...
//! ```

use crate::system_calls::{ArgumentRule, SystemCall};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};
use std::collections::BTreeMap;

/// Rules of each call by its number; a call without rules is always decided the same way.
type CallRules = BTreeMap<i64, Vec<SeccompRule>>;

/// A filter that allows the calls of a table. All other calls fail as if they did not exist.
pub fn allowing(table: impl Iterator<Item = &'static SystemCall>) -> Result<BpfProgram, String> {
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    compiled(table, &missing, &SeccompAction::Allow)
}

/// A filter that forbids the calls of a table, for a process that has a filter already.
pub fn forbidding(table: impl Iterator<Item = &'static SystemCall>) -> Result<BpfProgram, String> {
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    compiled(table, &SeccompAction::Allow, &missing)
}

fn compiled(
    table: impl Iterator<Item = &'static SystemCall>,
    others: &SeccompAction,
    these: &SeccompAction,
) -> Result<BpfProgram, String> {
    let end = |action: &SeccompAction| vec![step(libc::BPF_RET | libc::BPF_K, u32::from(action.clone()))];
    // Runs of numbers by their first number, each with its decision.
    let mut runs = vec![(0, end(others))];
    let mut add = |first: u32, program: BpfProgram| {
        // The run that would have begun here is empty.
        runs.pop_if(|(last, _)| *last == first);
        if runs.last().is_none_or(|(_, before)| *before != program) {
            runs.push((first, program));
        }
    };
    for (number, rules) in rules(table)? {
        let first = u32::try_from(number).map_err(|_| "a system call has a negative number")?;
        let program = match rules.is_empty() {
            true => end(these),
            false => linear(CallRules::from([(number, rules)]), others, these)?,
        };
        add(first, program);
        add(first + 1, end(others));
    }
    // A filter without calls checks the architecture and returns the decision for all other calls.
    let mut program = linear(CallRules::new(), others, these)?;
    program.pop();
    program.push(number());
    program.extend(tree(&runs));
    Ok(program)
}

fn rules(table: impl Iterator<Item = &'static SystemCall>) -> Result<CallRules, String> {
    let mut rules = CallRules::new();
    for call in table {
        let allowed = rules.entry(call.number).or_default();
        for rule in call.rules {
            let rule = conditions(rule).and_then(SeccompRule::new);
            allowed.push(rule.map_err(|error| error.to_string())?);
        }
    }
    Ok(rules)
}

/// Conditions of a rule, which holds if all its conditions hold.
fn conditions(rule: &ArgumentRule) -> Result<Vec<SeccompCondition>, seccompiler::BackendError> {
    let (argument, operator, value) = match *rule {
        ArgumentRule::Is(argument, value) => (argument, SeccompCmpOp::Eq, value),
        ArgumentRule::IsNot(argument, value) => (argument, SeccompCmpOp::Ne, value),
        ArgumentRule::MaskedIs(argument, bits, value) => (argument, SeccompCmpOp::MaskedEq(bits), value),
        ArgumentRule::HasNone(argument, bits) => (argument, SeccompCmpOp::MaskedEq(bits), 0),
        ArgumentRule::All(rules) => {
            let each = rules.iter().map(conditions).collect::<Result<Vec<_>, _>>()?;
            return Ok(each.concat());
        }
    };
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value).map(|condition| vec![condition])
}

/// The filter that `seccompiler` makes: it checks the architecture, and decides on every number.
fn linear(rules: CallRules, others: &SeccompAction, these: &SeccompAction) -> Result<BpfProgram, String> {
    let failed = |error: seccompiler::BackendError| error.to_string();
    let architecture: TargetArch = std::env::consts::ARCH.try_into().map_err(failed)?;
    let filter = SeccompFilter::new(rules, others.clone(), these.clone(), architecture).map_err(failed)?;
    filter.try_into().map_err(failed)
}

/// Loads the number of the call.
fn number() -> sock_filter {
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number)
}

/// A tree of comparisons of the loaded number, with the programs of the runs as leaves.
fn tree(runs: &[(u32, BpfProgram)]) -> BpfProgram {
    let (left, right) = runs.split_at(runs.len() / 2);
    let Some((first, program)) = right.first() else {
        return BpfProgram::new();
    };
    if left.is_empty() {
        return program.clone();
    }
    let (left, right) = (tree(left), tree(right));
    let mut is_right = step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, *first);
    // Jumps over the next step, which can jump farther than a comparison.
    is_right.jf = 1;
    let go_right = step(libc::BPF_JMP | libc::BPF_JA, left.len() as u32);
    [vec![is_right, go_right], left, right].concat()
}

fn step(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

#[cfg(test)]
mod tests;
