//! Decoders of the usage journal, with the properties that must hold for any bytes given to them.
//!
//! Shared by the mutation test (`mutations.rs`) and the fuzz targets (`fuzz/`). Random bytes never have a valid sum, so
//! each check also tries the same bytes with valid sums.

use hotlease_journal::TotalsTable;
use hotlease_journal::frame::{FRAME_BYTES, FunctionRecord, RecordKind, TotalRecord};
use hotlease_lease::ledger::{FunctionId, FunctionUse, TOTAL_MAX};
use hotlease_wire::ids::{AgentId, BootId, CodeHash, LeaseId};
use hotlease_wire::limits::{FUNCTION_LABEL_BYTES_MAX, TENANT_BYTES_MAX};
use hotlease_wire::session::UsageTotals;

/// Decoder with its checks.
pub struct Decoder {
    /// Name of the decoder's fuzz target and corpus folder.
    pub name: &'static str,
    /// Checks the properties for these bytes; returns whether the bytes were accepted.
    pub check: fn(&[u8]) -> bool,
    /// Valid encodings, each variant at least once.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All decoders of the journal.
pub const DECODERS: &[Decoder] = &[
    Decoder {
        name: "journal_frame",
        check: frame,
        seeds: frames,
    },
    Decoder {
        name: "journal",
        check: journal,
        seeds: journals,
    },
];

const SUM_AT: usize = FRAME_BYTES - 8;

fn with_sum(bytes: &[u8]) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    let length = bytes.len().min(SUM_AT);
    frame[..length].copy_from_slice(&bytes[..length]);
    let sum = blake3::hash(&frame[..SUM_AT]);
    frame[SUM_AT..].copy_from_slice(&sum.as_bytes()[..8]);
    frame
}

/// Checks that an accepted record is within every limit, and is equal after it is written and read again.
fn accepts(frame: &[u8; FRAME_BYTES]) -> bool {
    if let Some(record) = FunctionRecord::decode(frame) {
        let used = record.used;
        assert!(
            used.compute_ns.max(used.invocations) <= TOTAL_MAX,
            "a total beyond the limit: {record:?}"
        );
        assert!(record.function.name.len() <= FUNCTION_LABEL_BYTES_MAX, "{record:?}");
        assert_eq!(FunctionRecord::decode(&record.encode()), Some(record));
        assert_eq!(TotalRecord::decode(frame), None, "a frame is of one kind");
        return true;
    }
    let Some(record) = TotalRecord::decode(frame) else {
        return false;
    };
    let usage = record.usage;
    for total in [usage.allocated_ns, usage.hot_ns, usage.compute_ns, usage.invocations] {
        assert!(total <= TOTAL_MAX, "a total beyond the limit: {record:?}");
    }
    assert!(record.tenant.len() <= TENANT_BYTES_MAX, "{record:?}");
    assert_eq!(TotalRecord::decode(&record.encode()), Some(record));
    true
}

fn frame(bytes: &[u8]) -> bool {
    let exact = bytes.try_into().is_ok_and(accepts);
    accepts(&with_sum(bytes)) || exact
}

/// Reads a journal and checks its consistency; returns the number of whole records.
fn recover(bytes: &[u8]) -> u64 {
    let (mut table, recovery) = TotalsTable::recover(bytes);
    assert_eq!(
        recovery.records * FRAME_BYTES as u64 + recovery.damaged_bytes,
        bytes.len() as u64,
        "every byte is of a record, or damaged"
    );
    let totals = |table: &TotalsTable| -> (Vec<_>, Vec<_>) {
        let waiting = table.waiting().map(|(key, entry)| (*key, entry.clone()));
        (waiting.collect(), table.acknowledged().cloned().collect())
    };
    let before = totals(&table);
    let snapshot = table.snapshot();
    let (again, of_snapshot) = TotalsTable::recover(&snapshot);
    if let (Some(last), Some(first)) = (sequences(bytes).max(), sequences(&snapshot).min()) {
        assert!(
            first >= last,
            "what is written later has a later number: {first} after {last}"
        );
    }
    if recovery.agent.is_some() {
        assert_eq!(of_snapshot.damaged_bytes, 0, "what is written is whole");
        assert_eq!(totals(&again), before, "nothing is lost when it is written anew");
    }
    recovery.records
}

/// Numbers of the whole records that are at multiples of a frame's length.
fn sequences(journal: &[u8]) -> impl Iterator<Item = u64> {
    let (frames, _) = journal.as_chunks::<FRAME_BYTES>();
    frames.iter().filter_map(|frame| {
        let of_function = || FunctionRecord::decode(frame).map(|record| record.sequence);
        TotalRecord::decode(frame)
            .map(|record| record.sequence)
            .or_else(of_function)
    })
}

fn journal(bytes: &[u8]) -> bool {
    let summed: Vec<u8> = bytes.chunks(FRAME_BYTES).flat_map(with_sum).collect();
    recover(bytes) + recover(&summed) > 0
}

fn record(number: u8, kind: RecordKind, tenant: &str) -> TotalRecord {
    TotalRecord {
        kind,
        sequence: number.into(),
        agent: AgentId([1; 8]),
        boot: BootId([number % 2; 8]),
        lease: LeaseId([number / 2; 8]),
        tenant: tenant.into(),
        usage: UsageTotals {
            allocated_ns: 1_000_000 * u64::from(number),
            hot_ns: 1_000,
            compute_ns: TOTAL_MAX,
            invocations: number.into(),
        },
        slots: 2,
        memory_bytes: 1 << 30,
    }
}

/// Record of a function of a lease, with the same fields as in [`record`].
fn function(number: u8, name: &str) -> Vec<u8> {
    let record = FunctionRecord {
        sequence: number.into(),
        agent: AgentId([1; 8]),
        boot: BootId([number % 2; 8]),
        lease: LeaseId([number / 2; 8]),
        function: FunctionId::new(CodeHash([number; 32]), name),
        used: FunctionUse {
            compute_ns: TOTAL_MAX,
            invocations: 1,
        },
    };
    record.encode().to_vec()
}

fn frames() -> Vec<Vec<u8>> {
    let mut frames = lease_frames();
    frames.push(function(1, "black_scholes"));
    frames.push(function(3, &"x".repeat(FUNCTION_LABEL_BYTES_MAX)));
    frames
}

fn lease_frames() -> Vec<Vec<u8>> {
    let long = "x".repeat(TENANT_BYTES_MAX);
    let kinds = [
        (RecordKind::Running, "uid:1000"),
        (RecordKind::Ended, ""),
        (RecordKind::Acknowledged, long.as_str()),
        (RecordKind::InterruptedAcknowledged, "ü"),
        (RecordKind::Discarded, "uid:7"),
    ];
    let frame =
        |(number, (kind, tenant)): (usize, (RecordKind, &str))| record(number as u8, kind, tenant).encode().to_vec();
    kinds.into_iter().enumerate().map(frame).collect()
}

fn journals() -> Vec<Vec<u8>> {
    // A journal of an earlier version, which has no records of functions.
    let whole = lease_frames().concat();
    let torn = whole[..FRAME_BYTES + 100].to_vec();
    let shifted = [&[0; 7], &whole[..]].concat();
    // The largest number of a record, which no agent reaches in its lifetime.
    let last = TotalRecord {
        sequence: u64::MAX,
        ..record(1, RecordKind::Running, "uid:1000")
    };
    vec![whole, torn, shifted, frames().concat(), last.encode().to_vec()]
}
