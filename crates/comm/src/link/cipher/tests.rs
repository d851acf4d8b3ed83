use super::*;
use hotlease_wire::comm::GroupId;

const GROUP: GroupId = GroupId([7; 16]);

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).expect("32 bytes")
}

fn greeting(secret: &Secret) -> Greeting {
    Greeting {
        purpose: Purpose::Member,
        key: secret.id(),
        group: GROUP,
    }
}

fn rules(secrets: &[Secret]) -> AdmissionRules<'_> {
    AdmissionRules {
        secrets,
        purpose: Purpose::Member,
        group: GROUP,
    }
}

/// Connects both sides, giving each its bytes one by one.
fn connected(secret: &Secret, behind: &[u8]) -> (Cipher, Cipher, Vec<u8>) {
    let secrets = [secret.clone()];
    let (mut caller, first) = Initiator::new(secret, &greeting(secret), b"payload").expect("a handshake");
    let mut listener = Responder::new();
    let mut answer = Vec::new();
    for byte in first {
        match listener.read(&[byte], &rules(&secrets)) {
            Ok(ResponderStep::More) => {}
            Ok(ResponderStep::Answer { bytes, payload }) => {
                assert_eq!(payload, b"payload");
                answer = bytes;
            }
            _ => panic!("neither more nor an answer"),
        }
    }
    let mut cipher = None;
    for byte in answer {
        assert!(cipher.is_none(), "done before the last byte");
        cipher = caller.read(&[byte]).expect("the right secret");
    }
    let (mut ours, rest) = cipher.expect("done");
    assert!(rest.is_empty());
    let mut record = Vec::new();
    ours.seal(b"here", &mut record);
    record.extend(behind);
    match listener.read(&record, &rules(&secrets)) {
        Ok(ResponderStep::Proved { cipher, content, rest }) => {
            assert_eq!(content, b"here");
            (ours, cipher, rest)
        }
        _ => panic!("not known"),
    }
}

#[test]
fn both_sides_prove_the_secret_and_what_comes_behind_is_kept() {
    let (mut ours, mut theirs, rest) = connected(&secret(1), b"first frame");
    assert_eq!(rest, b"first frame");
    let mut record = Vec::new();
    theirs.seal(b"an answer", &mut record);
    let mut content = Vec::new();
    assert!(ours.open(&record[PREFIX_BYTES..], &mut content));
    assert_eq!(content, b"an answer");
    assert!(!ours.open(&record[PREFIX_BYTES..], &mut content), "a record opens once");
}

#[test]
fn a_different_secret_is_reported() {
    let (_, first) = Initiator::new(&secret(1), &greeting(&secret(1)), b"").expect("a handshake");
    let refused = Responder::new().read(&first, &rules(&[secret(2)])).err();
    assert_eq!(refused, Some(HandshakeError::Refuse(Verdict::OtherSecret)));
    let (mut caller, _) = Initiator::new(&secret(1), &greeting(&secret(1)), b"").expect("a handshake");
    let told = caller.read(&[Verdict::OtherSecret.encode()]).err();
    assert_eq!(told, Some(HandshakeError::Refused(Verdict::OtherSecret)));
}

#[test]
fn a_peer_that_only_names_the_secret_is_a_stranger() {
    // The greeting names one secret, and the handshake uses another.
    let (_, first) = Initiator::new(&secret(2), &greeting(&secret(1)), b"").expect("a handshake");
    let refused = Responder::new().read(&first, &rules(&[secret(1)])).err();
    assert!(matches!(refused, Some(HandshakeError::Stranger(_))), "{refused:?}");
}

#[test]
fn a_recording_of_a_handshake_is_noticed() {
    let secrets = [secret(1)];
    let (mut caller, first) = Initiator::new(&secrets[0], &greeting(&secrets[0]), b"").expect("a handshake");
    let answer = |listener: &mut Responder| match listener.read(&first, &rules(&secrets)) {
        Ok(ResponderStep::Answer { bytes, .. }) => bytes,
        _ => panic!("no answer"),
    };
    let (mut once, mut again) = (Responder::new(), Responder::new());
    let bytes = answer(&mut once);
    let (mut cipher, _) = caller.read(&bytes).expect("right").expect("done");
    let mut record = Vec::new();
    cipher.seal(b"", &mut record);
    assert!(matches!(
        once.read(&record, &rules(&secrets)),
        Ok(ResponderStep::Proved { .. })
    ));
    answer(&mut again);
    let replayed = again.read(&record, &rules(&secrets)).err();
    assert!(matches!(replayed, Some(HandshakeError::Stranger(_))), "{replayed:?}");
}

#[test]
fn garbage_is_refused_and_little_of_it_is_kept() {
    for garbage in [b"GET / HTTP/1.1\r\n".repeat(10), vec![0; 4096], vec![0xff; 4096]] {
        let mut listener = Responder::new();
        assert!(listener.read(&garbage, &rules(&[secret(1)])).is_err());
    }
    // A valid greeting is followed by a length above the bound.
    let mut first = greeting(&secret(1)).encode().to_vec();
    first.extend(u16::MAX.to_le_bytes());
    let refused = Responder::new().read(&first, &rules(&[secret(1)])).err();
    assert!(matches!(refused, Some(HandshakeError::Stranger(_))), "{refused:?}");
}
