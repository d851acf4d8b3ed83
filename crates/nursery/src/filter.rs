//! Filters of system calls, from tables of [`system_calls`](crate::system_calls).
//!
//! `seccompiler` asks for one call after the other. Of 230 calls that is 1,200 steps for the last one, and it is the kernel that pays:
//! when a filter is put on, it runs it once for every call that there is, to find those that are always allowed (`seccomp_cache_prepare`, Linux 5.11). Measured: 0.56 ms for each program that is started,
//! 0.18 ms with what follows.
//! So runs of numbers of which the same becomes are put into a tree of comparisons. Only where it depends on a call's arguments there is
//! a filter of `seccompiler`'s, of that call:
//!
//! ```text
//! number >= 157 ?  no   number >= 155 ?  no   ...
//!                                        yes  does not exist
//!                  yes  number >= 158 ?  no   filter of prctl
//!                                        yes  ...
//! ```

use crate::system_calls::{Call, Rule};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};
use std::collections::BTreeMap;

/// What a number may be asked for.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What is not in the table does not exist.
pub fn of(table: impl Iterator<Item = &'static Call>) -> Result<BpfProgram, String> {
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    compiled(table, &missing, &SeccompAction::Allow)
}

/// Takes away what is in a table, from who has a filter already.
pub fn without(table: impl Iterator<Item = &'static Call>) -> Result<BpfProgram, String> {
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    compiled(table, &SeccompAction::Allow, &missing)
}

fn compiled(
    table: impl Iterator<Item = &'static Call>,
    others: &SeccompAction,
    these: &SeccompAction,
) -> Result<BpfProgram, String> {
    let end = |action: &SeccompAction| vec![step(libc::BPF_RET | libc::BPF_K, u32::from(action.clone()))];
    // Runs of numbers, by their first one, and what becomes of them.
    let mut runs = vec![(0, end(others))];
    let mut add = |first: u32, program: BpfProgram| {
        // Nothing is left of the run that would have begun here.
        runs.pop_if(|(last, _)| *last == first);
        if runs.last().is_none_or(|(_, before)| *before != program) {
            runs.push((first, program));
        }
    };
    for (number, rules) in rules(table)? {
        let first = u32::try_from(number).map_err(|_| "a system call has a negative number")?;
        let program = match rules.is_empty() {
            true => end(these),
            false => plain(Rules::from([(number, rules)]), others, these)?,
        };
        add(first, program);
        add(first + 1, end(others));
    }
    // Without calls it is the question for the architecture, and what becomes of all.
    let mut program = plain(Rules::new(), others, these)?;
    program.pop();
    program.push(number());
    program.extend(tree(&runs));
    Ok(program)
}

fn rules(table: impl Iterator<Item = &'static Call>) -> Result<Rules, String> {
    let mut rules = Rules::new();
    for call in table {
        let allowed = rules.entry(call.number).or_default();
        for &rule in call.rules {
            let (argument, operator, value) = match rule {
                Rule::Is(argument, value) => (argument, SeccompCmpOp::Eq, value),
                Rule::Among(argument, bits, value) => (argument, SeccompCmpOp::MaskedEq(bits), value),
                Rule::HasNone(argument, bits) => (argument, SeccompCmpOp::MaskedEq(bits), 0),
            };
            let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value);
            let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
            allowed.push(rule.map_err(|error| error.to_string())?);
        }
    }
    Ok(rules)
}

/// As `seccompiler` makes it: it looks at the architecture itself, and says what becomes of every number.
fn plain(rules: Rules, others: &SeccompAction, these: &SeccompAction) -> Result<BpfProgram, String> {
    let failed = |error: seccompiler::BackendError| error.to_string();
    let architecture: TargetArch = std::env::consts::ARCH.try_into().map_err(failed)?;
    let filter = SeccompFilter::new(rules, others.clone(), these.clone(), architecture).map_err(failed)?;
    filter.try_into().map_err(failed)
}

/// The number of the call that is asked for.
fn number() -> sock_filter {
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number)
}

/// What becomes of runs of numbers, behind comparisons with the number that is loaded.
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
    // Past the next step, which goes further than a comparison can.
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
