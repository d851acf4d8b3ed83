//! The committed corpus (`fuzz/corpus/DECODER/NAME`) must equal the current encodings of the messages.
//!
//! A change here is a change of the protocol: raise `limits::PROTOCOL_VERSION`, then rewrite the corpus with
//! `HOTLEASE_WRITE_CORPUS=1 cargo test --release -p hotlease-wire --features grpc --test corpus`.

#![cfg(feature = "grpc")]

mod committed;
mod decoders;

use decoders::DECODERS;

#[test]
fn committed_corpus_is_what_messages_encode_to() {
    for decoder in DECODERS {
        committed::hold(
            decoder.name,
            &(decoder.seeds)(),
            "the protocol has changed (see the top of this test)",
        );
    }
}

#[test]
fn every_seed_is_accepted() {
    for decoder in DECODERS {
        for (number, bytes) in (decoder.seeds)().iter().enumerate() {
            // The token corpus contains bare claims too, which are not tokens.
            let expected = decoder.name != "token" || number < 2;
            assert_eq!((decoder.check)(bytes), expected, "{} seed {number}", decoder.name);
        }
    }
}
