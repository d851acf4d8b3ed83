//! Checks that `docs/openapi.json` is the document that the code generates.

use std::path::Path;

#[test]
fn the_kept_document_is_the_codes_own() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let kept = std::fs::read_to_string(path).expect("docs/openapi.json");
    assert!(
        kept == hotlease_manager::openapi(),
        "docs/openapi.json is stale; run `hotlease manager --openapi > docs/openapi.json`"
    );
}
