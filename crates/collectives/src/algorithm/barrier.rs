//! Barriers. A message is one element whose value has no meaning.

use super::plan::{RankGroup, SchedulePlan};
use super::tree::Tree;
use crate::schedule::AreaSpan;

/// Dissemination: in round `k` each member notifies the member `2^k` after it and waits for the member `2^k` before
/// it.
///
/// `ceil(log2 p)` steps. Hensgen, Finkel, Manber: Two algorithms for barrier synchronization (1988).
pub(crate) fn dissemination(plan: &mut SchedulePlan, group: &RankGroup) {
    let [told, heard] = tokens(plan);
    let mut distance = 1;
    while distance < group.size {
        plan.send(group, group.after(distance), told);
        plan.receive(group, group.before(distance), heard);
        plan.end_round();
        distance *= 2;
    }
}

/// Sends up a binomial tree and down again: twice the steps of dissemination, but `2 (p - 1)` messages instead of `p
/// log2 p`.
pub(crate) fn tree(plan: &mut SchedulePlan, group: &RankGroup) {
    arrive(plan, group);
    release(plan, group);
}

/// Each member notifies member 0, which then notifies each: `2 (p - 1)` messages, the same number as along a tree. But
/// the longest chain of messages that wait for each other has two messages, for any number of members. The algorithm is
/// for members that share processors, where each switch from one member to another takes longer than a message.
pub(crate) fn linear(plan: &mut SchedulePlan, group: &RankGroup) {
    let told = plan.allocate_scratch(1);
    if group.me == 0 {
        for member in 1..group.size {
            let heard = plan.allocate_scratch(1);
            plan.receive(group, member, heard);
        }
        plan.end_round();
        for member in 1..group.size {
            plan.send(group, member, told);
        }
    } else {
        let heard = plan.allocate_scratch(1);
        plan.send(group, 0, told);
        plan.receive(group, 0, heard);
    }
    plan.end_round();
}

/// Waits at member 0 for all members, and at every other member for its subtree.
pub(crate) fn arrive(plan: &mut SchedulePlan, group: &RankGroup) {
    let tree = Tree::new(group, 0);
    let told = plan.allocate_scratch(1);
    for child in tree.children() {
        let heard = plan.allocate_scratch(1);
        plan.receive(group, child.member, heard);
    }
    plan.end_round();
    if let Some(parent) = tree.parent() {
        plan.send(group, parent, told);
        plan.end_round();
    }
}

/// Makes all members wait until member 0 has reached this step.
pub(crate) fn release(plan: &mut SchedulePlan, group: &RankGroup) {
    let tree = Tree::new(group, 0);
    let [told, heard] = tokens(plan);
    if let Some(parent) = tree.parent() {
        plan.receive(group, parent, heard);
        plan.end_round();
    }
    for child in tree.children().rev() {
        plan.send(group, child.member, told);
    }
    plan.end_round();
}

fn tokens(plan: &mut SchedulePlan) -> [AreaSpan; 2] {
    [plan.allocate_scratch(1), plan.allocate_scratch(1)]
}
