use super::*;
use crate::identity::{TenantDirectory, TenantPolicy};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hotlease_store::{MemoryStore, Position, PutCondition, TenantRecord, TenantStore};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;
use std::time::UNIX_EPOCH;
use tempfile::TempDir;

const ISSUER: &str = "https://login.example.org/";

/// An issuer with two keys, loaded from a file of issuers.
struct Scene {
    dir: TempDir,
    issuers: Issuers,
    ed: Ed25519KeyPair,
    es: EcdsaKeyPair,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

impl Scene {
    fn new(further: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let random = SystemRandom::new();
        let ed = Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref()).unwrap();
        let curve = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap();
        let es = EcdsaKeyPair::from_pkcs8(curve, pkcs8.as_ref(), &random).unwrap();
        let point = es.public_key().as_ref();
        let keys = json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "alg": "EdDSA", "x": BASE64.encode(ed.public_key().as_ref())},
            {"kty": "EC", "crv": "P-256", "kid": "es", "use": "sig",
             "x": BASE64.encode(&point[1..33]), "y": BASE64.encode(&point[33..])},
        ]});
        fs::write(dir.path().join("jwks.json"), keys.to_string()).unwrap();
        let file = dir.path().join("issuers.toml");
        let text =
            format!("[[issuer]]\nissuer = \"{ISSUER}\"\naudience = \"hotlease\"\nkeys = \"jwks.json\"\n{further}");
        fs::write(&file, text).unwrap();
        let issuers = Issuers::load(&file).unwrap();
        Self { dir, issuers, ed, es }
    }

    fn signed(&self, header: &Value, claims: &Value) -> String {
        let body = format!(
            "{}.{}",
            BASE64.encode(header.to_string()),
            BASE64.encode(claims.to_string())
        );
        let signature = match header["alg"].as_str() {
            Some("ES256") => self
                .es
                .sign(&SystemRandom::new(), body.as_bytes())
                .unwrap()
                .as_ref()
                .to_vec(),
            _ => self.ed.sign(body.as_bytes()).as_ref().to_vec(),
        };
        format!("{body}.{}", BASE64.encode(signature))
    }

    fn ed(&self, claims: &Value) -> String {
        self.signed(&json!({"alg": "EdDSA", "kid": "ed"}), claims)
    }
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": "hotlease", "sub": "alice@example.org", "exp": now() + 300,
           "groups": ["staff", "hpc"], "project": "chem"})
}

fn changed(change: impl FnOnce(&mut Map<String, Value>)) -> Value {
    let mut claims = claims();
    change(claims.as_object_mut().expect("an object"));
    claims
}

fn claimed(tenant: &str) -> Subject {
    Subject::Claimed {
        issuer: ISSUER.into(),
        is_only_issuer: true,
        subject: "alice@example.org".into(),
        tenant: tenant.into(),
    }
}

#[test]
fn a_token_speaks_of_its_subject_and_its_claims_name_the_tenant() {
    let scene = Scene::new("");
    assert_eq!(scene.issuers.check(&scene.ed(&claims())), Ok(claimed("")));
    let es = scene.signed(&json!({"alg": "ES256", "kid": "es"}), &claims());
    assert_eq!(scene.issuers.check(&es), Ok(claimed("")));
    let mapped = "tenant_claim = \"project\"\n[[issuer.map]]\nclaim = \"groups\"\nvalue = \"hpc\"\ntenant = \"ops\"\n";
    let scene = Scene::new(mapped);
    assert_eq!(scene.issuers.check(&scene.ed(&claims())), Ok(claimed("ops")));
    let outside = changed(|claims| drop(claims.insert("groups".into(), json!(["staff"]))));
    assert_eq!(scene.issuers.check(&scene.ed(&outside)), Ok(claimed("chem")));
    let user = changed(|claims| {
        claims.remove("groups");
        claims.insert("project".into(), json!("uid:0"));
    });
    assert_eq!(
        scene.issuers.check(&scene.ed(&user)),
        Ok(claimed("")),
        "a claim passed for a local user"
    );
}

/// A second issuer, of another organisation, with the same keys.
const OTHER: &str = "https://partner.example.com/";

fn of_other() -> Value {
    changed(|claims| drop(claims.insert("iss".into(), json!(OTHER))))
}

fn second(further: &str) -> String {
    format!("[[issuer]]\nissuer = \"{OTHER}\"\naudience = \"hotlease\"\nkeys = \"jwks.json\"\n{further}")
}

fn directory(tenants: &[(&str, &[&str])]) -> TenantDirectory {
    let store = MemoryStore::default();
    for (name, members) in tenants {
        let tenant = TenantRecord {
            name: (*name).into(),
            enabled: true,
            position: Position::Operator,
            members: members.iter().map(|member| (*member).into()).collect(),
            ..TenantRecord::default()
        };
        store.put_tenant(tenant, PutCondition::Always).expect("put");
    }
    let directory = TenantDirectory::new(TenantPolicy::Listed);
    directory.refresh(&store).expect("read");
    directory
}

#[test]
fn the_same_subject_of_another_issuer_is_another_member() {
    let scene = Scene::new(&second(""));
    let own = scene.issuers.check(&scene.ed(&claims())).expect("good");
    let other = scene.issuers.check(&scene.ed(&of_other())).expect("good");
    let member = format!("jwt:{ISSUER}#alice@example.org");
    let known = directory(&[("ops", &[&member])]);
    assert_eq!(known.find_member(&own).expect("listed").0, "ops");
    assert!(
        known.find_member(&other).is_err(),
        "one issuer's subject passed for another's"
    );
    // A member's name without an issuer stands for no member here, and the refusal says which name to write instead.
    let known = directory(&[("ops", &["jwt:alice@example.org"])]);
    for subject in [own, other] {
        let refused = known.find_member(&subject).expect_err("whose is it?").to_string();
        assert!(
            refused.contains(&format!("--member '{}'", subject.member())),
            "{refused}"
        );
    }
    let refused = scene.issuers.check_member("jwt:alice@example.org").expect_err("whose?");
    assert!(refused.to_string().contains(OTHER), "{refused}");
    assert!(
        scene.issuers.check_member("jwt:https://login.example.org#a").is_err(),
        "no such issuer"
    );
    assert_eq!(scene.issuers.check_member(&member), Ok(()));
    assert_eq!(scene.issuers.check_member("uid:7"), Ok(()));
}

#[test]
fn a_subject_without_an_issuer_belongs_to_the_only_issuer() {
    let scene = Scene::new("");
    let subject = scene.issuers.check(&scene.ed(&claims())).expect("good");
    let qualified = format!("jwt:{ISSUER}#alice@example.org");
    for member in ["jwt:alice@example.org", &qualified] {
        assert_eq!(scene.issuers.check_member(member), Ok(()));
        let known = directory(&[("chem", &[member])]);
        assert_eq!(known.find_member(&subject).expect(member).0, "chem");
    }
    // A subject whose text looks like another issuer's subject is not taken for that subject.
    let forged = changed(|claims| drop(claims.insert("sub".into(), json!(format!("{OTHER}#boss")))));
    let forged = scene.issuers.check(&scene.ed(&forged)).expect("good");
    let known = directory(&[("ops", &[&format!("jwt:{OTHER}#boss")])]);
    assert!(
        known.find_member(&forged).is_err(),
        "{forged:?} passed for a subject of {OTHER}"
    );
}

#[test]
fn an_issuer_names_members_of_its_tenants_only() {
    let scene = Scene::new(&second("tenants = [\"partner\"]\ntenant_claim = \"project\"\n"));
    let claiming = |tenant: &str| {
        let mut claims = of_other();
        claims["project"] = json!(tenant);
        scene.issuers.check(&scene.ed(&claims)).expect("good")
    };
    let known = directory(&[("partner", &[]), ("ops", &[&format!("jwt:{OTHER}#alice@example.org")])]);
    let listed = claiming("partner");
    assert_eq!(known.find_member(&listed).expect("listed").0, "ops");
    assert!(scene.issuers.check_tenant(&listed, "ops").is_err(), "not in its list");
    assert_eq!(scene.issuers.check_tenant(&listed, "partner"), Ok(()));
    let known = directory(&[("partner", &[]), ("ops", &[])]);
    assert_eq!(known.find_member(&claiming("partner")).expect("claimed").0, "partner");
    assert!(
        known.find_member(&claiming("ops")).is_err(),
        "a claim named a tenant that is not the issuer's"
    );
}

#[test]
fn each_of_several_issuers_has_tenants_of_its_own() {
    let scene = Scene::new("");
    let file = scene.dir.path().join("issuers.toml");
    let first = fs::read_to_string(&file).expect("read");
    let loaded = |further: &str| {
        fs::write(&file, format!("{first}{further}")).expect("written");
        Issuers::load(&file).map(|issuers| issuers.count())
    };
    assert_eq!(loaded(&second("")).expect("two"), 2);
    let mapped = "tenants = [\"partner\"]\n[[issuer.map]]\nclaim = \"g\"\nvalue = \"v\"\ntenant = \"ops\"\n";
    for bad in [
        first.clone(),
        second("tenant_claim = \"project\"\n"),
        second("tenants = [\"uid:0\"]\n"),
        second(mapped),
        second("").replace(OTHER, "https://partner.example.com/#x"),
        second("").replace(OTHER, "a partner"),
    ] {
        assert!(loaded(&bad).is_err(), "{bad} was taken");
    }
}

#[test]
fn invalid_claims_are_refused() {
    let scene = Scene::new("");
    let expired = scene
        .issuers
        .check(&scene.ed(&changed(|claims| drop(claims.insert("exp".into(), json!(now() - 31))))));
    assert_eq!(expired, Err(not_authenticated("the token has expired")));
    let within = changed(|claims| drop(claims.insert("exp".into(), json!(now() - 20))));
    assert!(
        scene.issuers.check(&scene.ed(&within)).is_ok(),
        "no leeway for clocks that differ"
    );
    type Spoil = fn(&mut Map<String, Value>);
    let spoiled: [Spoil; 13] = [
        |claims| drop(claims.remove("exp")),
        |claims| drop(claims.insert("exp".into(), json!("9999999999"))),
        |claims| drop(claims.insert("nbf".into(), json!(now() + 100))),
        |claims| drop(claims.insert("nbf".into(), json!("soon"))),
        |claims| drop(claims.remove("aud")),
        |claims| drop(claims.insert("aud".into(), json!("another"))),
        |claims| drop(claims.insert("aud".into(), json!([]))),
        |claims| drop(claims.remove("iss")),
        |claims| drop(claims.insert("iss".into(), json!("https://elsewhere/"))),
        |claims| drop(claims.remove("sub")),
        |claims| drop(claims.insert("sub".into(), json!(""))),
        |claims| drop(claims.insert("sub".into(), json!("a b"))),
        |claims| drop(claims.insert("sub".into(), json!("x".repeat(500)))),
    ];
    for (number, spoil) in spoiled.into_iter().enumerate() {
        assert!(
            scene.issuers.check(&scene.ed(&changed(spoil))).is_err(),
            "spoiled token {number} was taken"
        );
    }
}

#[test]
fn the_header_does_not_choose_how_it_is_checked() {
    let scene = Scene::new("");
    let point = scene.ed.public_key().as_ref();
    for header in [
        json!({"alg": "none"}),
        json!({"alg": "ES256", "kid": "ed"}),
        json!({"alg": "EdDSA", "kid": "es"}),
        json!({"alg": "RS256", "kid": "ed"}),
        json!({"alg": "EdDSA", "kid": "unknown"}),
        json!({"alg": "HS256", "kid": "ed"}),
        json!({"kid": "ed"}),
    ] {
        assert!(
            scene.issuers.check(&scene.signed(&header, &claims())).is_err(),
            "{header} was taken"
        );
    }
    // The public key used as a shared secret.
    let body = format!(
        "{}.{}",
        BASE64.encode(json!({"alg": "HS256", "kid": "ed"}).to_string()),
        BASE64.encode(claims().to_string())
    );
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, point);
    let forged = format!("{body}.{}", BASE64.encode(ring::hmac::sign(&key, body.as_bytes())));
    assert!(
        scene.issuers.check(&forged).is_err(),
        "a public key was taken for a secret"
    );
    assert!(scene.issuers.check(&format!("{body}.")).is_err(), "no signature at all");
    let scene = Scene::new("algorithms = [\"ES256\"]\n");
    assert!(
        scene.issuers.check(&scene.ed(&claims())).is_err(),
        "an algorithm that the site does not allow"
    );
}

#[test]
fn every_changed_or_missing_character_is_refused() {
    let scene = Scene::new("");
    let token = scene.ed(&claims());
    // The last character of base64 has unused bits; the decoder is strict about them.
    for at in 0..token.len() {
        assert!(scene.issuers.check(&token[..at]).is_err(), "cut to {at} and taken");
        for replacement in [b'A', b'_', b'.', b'"', 0x7f] {
            let mut changed = token.clone().into_bytes();
            if changed[at] != replacement {
                changed[at] = replacement;
                let changed = String::from_utf8(changed).expect("ASCII");
                assert!(
                    scene.issuers.check(&changed).is_err(),
                    "character {at} changed and taken"
                );
            }
        }
    }
}

#[test]
fn files_that_would_weaken_the_site_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("jwks.json");
    fs::write(&keys, r#"{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"s"}]}"#).unwrap();
    let file = dir.path().join("issuers.toml");
    let write = |text: &str| fs::write(&file, text).unwrap();
    let good = "[[issuer]]\nissuer = \"i\"\naudience = \"a\"\nkeys = \"jwks.json\"\n";
    write(good);
    assert!(
        Issuers::load(&file).is_err(),
        "a shared secret was taken for a public key"
    );
    fs::write(&keys, r#"{"keys":[]}"#).unwrap();
    assert!(Issuers::load(&file).is_ok());
    for bad in [
        "algorithms = [\"HS256\"]",
        "algorithms = [\"none\"]",
        "algorithms = []",
        "leeway = 1000000",
        "[[issuer.map]]\nclaim = \"g\"\nvalue = \"v\"\ntenant = \"uid:0\"",
    ] {
        write(&format!("{good}{bad}\n"));
        assert!(Issuers::load(&file).is_err(), "{bad} was taken");
    }
}
