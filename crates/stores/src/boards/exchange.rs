//! Exchange of boards: until all members have joined, then a few times in each failure bound, and once more at the end.

use crate::backoff::Backoff;
use crate::courier::Courier;
use crate::lock::lock;
use crate::store::{LinkStore, StoreFault};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const BEATS: u32 = 8;
const SILENT_BEATS_MAX: u32 = 6;
/// First pause while this member waits for the other members' boards.
const SOON: Duration = Duration::from_millis(2);

/// Writes the own board and reads all others.
async fn exchange<S: LinkStore>(courier: &Courier<S>) -> Result<(), StoreFault> {
    let plan = &courier.plan;
    let silence_max = plan.bound * SILENT_BEATS_MAX / BEATS;
    let (keys, board, words, is_leaving) = {
        let mut boards = lock(&courier.boards);
        boards.own.beat += 1;
        let is_leaving = boards.is_leaving;
        (boards.keys.clone(), boards.own.encode(), boards.unwritten, is_leaving)
    };
    let exchanged = courier.store.exchange(&keys, plan.me as usize, board);
    let found = tokio::time::timeout(silence_max, exchanged).await;
    let found = found.unwrap_or_else(|_| {
        let why = format!("it does not answer within {silence_max:?}; look whether it is well and can be reached");
        Err(StoreFault { why })
    })?;
    let mut boards = lock(&courier.boards);
    let events = boards.read_boards(found, Instant::now(), silence_max)?;
    boards.unwritten -= words;
    boards.is_seen_leaving = is_leaving;
    let outlived = boards.take_outlived();
    drop(boards);
    courier.mark_for_removal(outlived);
    events.into_iter().for_each(|event| plan.shared.tell(event));
    if words > 0 {
        plan.shared.note_written(words);
        plan.shared.wake();
    }
    Ok(())
}

/// Waits until all members have written their boards.
pub(crate) async fn gather<S: LinkStore>(courier: &Courier<S>) -> Result<(), StoreFault> {
    let mut backoff = Backoff::new(SOON, courier.plan.bound / BEATS);
    loop {
        // Silence is measured only after all members have written their boards.
        let now = Instant::now();
        lock(&courier.boards).reset_silence(now);
        exchange(courier).await?;
        if lock(&courier.boards).are_all_there() {
            return Ok(());
        }
        let pause = backoff.pause();
        if Instant::now() + pause >= courier.plan.deadline && courier.plan.is_partial {
            lock(&courier.boards).give_up_missing(&courier.plan);
            return Ok(());
        }
        if Instant::now() + pause >= courier.plan.deadline {
            let (missing, own) = {
                let boards = lock(&courier.boards);
                let missing = boards.others().find(|(_, other)| other.board.is_none());
                let missing = missing.map_or(0, |(rank, _)| rank);
                (missing, boards.keys[boards.me as usize].clone())
            };
            let _ = courier.store.remove(&[own]).await;
            let why = format!("rank {missing} did not come there; give all members the same link");
            return Err(StoreFault { why });
        }
        tokio::time::sleep(pause).await;
    }
}

/// Keeps the board up to date, until the link ends or the store cannot be used.
pub(crate) async fn keep<S: LinkStore>(courier: Arc<Courier<S>>) {
    let beat = courier.plan.bound / BEATS;
    let mut backoff: Option<Backoff> = None;
    let mut last = Instant::now();
    loop {
        let began = Instant::now();
        if began.saturating_duration_since(last) > 2 * beat {
            // This process did not run for a while. It has not read the other boards meanwhile, so it cannot conclude
            // that other members were silent.
            lock(&courier.boards).reset_silence(began);
        }
        last = began;
        if let Err(fault) = exchange(&courier).await {
            return courier.sever(&fault);
        }
        if courier.is_ending.load(Ordering::Acquire) {
            return;
        }
        let pause = if lock(&courier.boards).is_leaving {
            backoff.get_or_insert_with(|| Backoff::new(SOON, beat)).pause()
        } else {
            beat
        };
        let _ = tokio::time::timeout_at((began + pause).into(), courier.news.notified()).await;
        let boards = lock(&courier.boards);
        if courier.is_ending.load(Ordering::Acquire) && !boards.is_leaving && boards.unwritten == 0 {
            // This member has given up, and all others can read that. The board may have been removed by now, with all
            // other keys of the group, so it must not be written again.
            return;
        }
    }
}

/// Removes all boards, if this member is the last to leave. If a member or a collective has failed, also removes all
/// other keys of the group.
pub(crate) async fn remove_boards<S: LinkStore>(courier: &Courier<S>) -> Result<(), StoreFault> {
    let (is_last, is_untidy, keys) = {
        let boards = lock(&courier.boards);
        (boards.have_all_gone(), boards.is_untidy, boards.keys.clone())
    };
    if !is_last {
        return Ok(());
    }
    if is_untidy {
        let group = format!("{}/", courier.plan.group);
        courier.store.clear(&group).await?;
    }
    courier.store.remove(&keys).await
}
