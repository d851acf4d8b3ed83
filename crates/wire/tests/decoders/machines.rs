//! Decoders of the messages between the monitor and the guest of a virtual machine.

use hotlease_wire::encode;
use hotlease_wire::ids::Epoch;
use hotlease_wire::machine::{
    Assignment, FromGuest, GuestCrash, GuestEnd, MachineHead, MachineLimits, RUN_BYTES_MAX, ToGuest, WorkerStart,
};

pub fn head(bytes: &[u8]) -> bool {
    let Some(first) = bytes.first_chunk() else {
        return false;
    };
    let decoded = MachineHead::decode(first);
    if let Ok(head) = decoded {
        assert_eq!(head.encode(), *first);
    }
    decoded.is_ok()
}

pub fn heads() -> Vec<Vec<u8>> {
    let head = |message_bytes, brought_bytes| MachineHead {
        message_bytes,
        brought_bytes,
    };
    [head(1, 0), head(40, 1 << 30)]
        .map(|head| head.encode().to_vec())
        .into()
}

pub fn run(bytes: &[u8]) -> bool {
    match WorkerStart::decode(bytes) {
        Ok(run) => {
            assert!(bytes.len() as u64 <= RUN_BYTES_MAX);
            assert_eq!(WorkerStart::decode(&encode(&run)), Ok(run));
            true
        }
        Err(_) => false,
    }
}

pub fn runs() -> Vec<Vec<u8>> {
    let run = WorkerStart {
        path: b"/usr/bin/python3".into(),
        arguments: vec![b"python3".into(), b"-c".into()],
        environment: vec![(b"HOME".into(), b"/tmp".into())],
        directory: b"/".into(),
        zygote: true,
        limits: MachineLimits {
            processes: 512,
            files: 1024,
            file_bytes: 1 << 30,
            tmp_bytes: 1 << 28,
            shm_bytes: 1 << 28,
        },
        shown: vec![b"/tmp/data".into()],
    };
    vec![encode(&run)]
}

pub fn to_guest() -> Vec<Vec<u8>> {
    let assignment = Assignment {
        epoch: Epoch(3),
        slots: 2,
        memory_bytes: 1 << 30,
        tenant: "uid:1000".into(),
    };
    [
        ToGuest::Run { now_ns: 1 },
        ToGuest::Resume { now_ns: 1 },
        ToGuest::Assign(assignment),
        ToGuest::Load { base: 1 },
        ToGuest::Call {
            slot: 1,
            function: 2,
            timeout_us: 3,
            capacity: 4,
        },
        ToGuest::File,
        ToGuest::Pause,
    ]
    .iter()
    .map(encode)
    .collect()
}

pub fn from_guest() -> Vec<Vec<u8>> {
    let crash = GuestCrash {
        slot: Some(1),
        signal: 11,
        overrun_capacity: Some(16),
    };
    let ended = GuestEnd {
        failure: String::new(),
        status: -11,
        out_of_memory: true,
        crash: Some(crash),
    };
    [
        FromGuest::Booted,
        FromGuest::Ready {
            version: 9,
            imports_us: 1000,
        },
        FromGuest::Obeyed(Ok(())),
        FromGuest::Obeyed(Err("no such function".into())),
        FromGuest::Returned {
            slot: 1,
            status: 0,
            code: -1,
            bytes: 100,
        },
        FromGuest::File,
        FromGuest::Printed,
        FromGuest::Ended(ended),
        FromGuest::Ended(GuestEnd::not_started("no such program".into())),
    ]
    .iter()
    .map(encode)
    .collect()
}
