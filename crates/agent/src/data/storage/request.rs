//! One request to object storage: its signature, its target, its permission, and the store's answer.

use super::StorageState;
use super::connections::ConnectionOwner;
use super::lease::LeaseStorage;
use super::site_file::Store;
use hotlease_s3::{
    Authorization, BODY_BYTES_MAX, BodyDigest, Fault, PermittedPlaces, S3Operation, S3Request, SignatureTime,
    SignedParts, digest, forward_headers, parse_removal,
};
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, LOCATION, SET_COOKIE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use std::convert::Infallible;
use std::sync::Arc;

/// Body of an answer to a function: made here, or a store's.
type Body = Either<Full<Bytes>, reqwest::Body>;

/// Largest number of bytes read of a store's error message.
const WORDS_MAX: usize = 16 << 10;

/// Answers a request. If the request fails, the answer is an error in S3's format.
pub(super) async fn answer(
    open: Arc<StorageState>,
    holder: Arc<ConnectionOwner>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let answer = pass(&open, &holder, request).await;
    Ok(answer.unwrap_or_else(|fault| {
        tracing::debug!(%fault, "a request to storage was refused");
        refusal(&fault)
    }))
}

fn refusal(fault: &Fault) -> Response<Body> {
    let mut answer = Response::new(Either::Left(Full::from(fault.to_xml())));
    *answer.status_mut() = StatusCode::from_u16(fault.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    // The rest of the request's body is not read.
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

async fn pass(
    open: &StorageState,
    holder: &ConnectionOwner,
    request: Request<Incoming>,
) -> Result<Response<Body>, Fault> {
    let (head, body) = request.into_parts();
    let (method, headers) = (&head.method, &head.headers);
    let authorization = Authorization::of(headers)?;
    let lease = holder.candidate(open, authorization.id)?;
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let asked = S3Request::read(method, target, headers)?;
    let query = asked.query();
    let part = SignedParts {
        method: method.as_str(),
        path: asked.path(),
        query: &query,
    };
    authorization.check(part, headers, &lease.keys, SignatureTime::now())?;
    holder.assign(&lease)?;
    let judged = asked.check(&lease.places)?;
    let store = store_of(open, &lease, &judged)?;
    let payload = BodyDigest::of(headers)?;
    let mut on = forward_headers(headers, &asked)?;
    let body = body_of(&asked, (&lease, &judged), (method, &payload), body).await?;
    let unusable = |why: String| {
        tracing::warn!(why, "the site's keys of a store cannot be used");
        Fault::new(
            503,
            "ServiceUnavailable",
            "the site's keys of this store cannot be used; its operator finds why in the agent's log",
        )
    };
    let keys = store.keys().await.map_err(unusable)?;
    let url = store.url(asked.path(), &query);
    let url = url.ok_or_else(|| Fault::new(400, "InvalidURI", "such a key cannot be written in a URL"))?;
    keys.sign(
        part,
        &mut on,
        (&store.host, &store.region),
        payload.text(),
        SignatureTime::now(),
    )?;
    let mut passed = open.client.request(method.clone(), url).headers(on);
    if let Some(body) = body {
        passed = passed.body(body);
    }
    let answer = passed.send().await.map_err(|error| unreachable(store, error))?;
    pass_answer(answer.into(), method).await
}

/// The store that all places of the request belong to.
fn store_of<'a>(open: &'a StorageState, lease: &LeaseStorage, judged: &PermittedPlaces) -> Result<&'a Store, Fault> {
    let number = |place: usize| lease.stores.get(place).copied();
    let store = number(judged.place);
    if judged.source.is_some_and(|source| number(source) != store) {
        return Err(Fault::new(
            501,
            "NotImplemented",
            "the source is in another store of the site; read it and write it instead of copying",
        ));
    }
    let store = store.and_then(|number| open.site.store(number));
    store.ok_or_else(|| Fault::new(500, "InternalError", "the site's store is not known"))
}

/// The body to pass on; `None` if there is none. Only a list of objects to remove is read and checked here.
async fn body_of(
    asked: &S3Request,
    (lease, judged): (&LeaseStorage, &PermittedPlaces),
    (method, payload): (&Method, &BodyDigest),
    body: Incoming,
) -> Result<Option<reqwest::Body>, Fault> {
    if !matches!(*method, Method::PUT | Method::POST) {
        return match body.is_end_stream() {
            true => Ok(None),
            false => Err(Fault::new(400, "InvalidRequest", format!("{method} has no body here"))),
        };
    }
    if body.size_hint().exact().is_none() {
        return Err(Fault::new(
            411,
            "MissingContentLength",
            "the length of a body has to be said before it",
        ));
    }
    if asked.operation != S3Operation::RemoveMany {
        return Ok(Some(reqwest::Body::wrap(body)));
    }
    let read = Limited::new(body, BODY_BYTES_MAX).collect().await;
    let read = read.map_err(|error| {
        Fault::new(
            400,
            "IncompleteBody",
            format!("the list of objects to remove cannot be read: {error}"),
        )
    })?;
    let bytes = read.to_bytes();
    // If the text is no digest, there is nothing to compare the body with.
    let is_digest = payload.text().len() == 64;
    if is_digest && !payload.text().eq_ignore_ascii_case(&digest(&bytes)) {
        return Err(Fault::new(
            400,
            "XAmzContentSHA256Mismatch",
            "the body is not the one that was signed",
        ));
    }
    for key in parse_removal(&bytes)? {
        asked.check_removal(&key, &lease.places, judged.place)?;
    }
    Ok(Some(bytes.into()))
}

fn unreachable(store: &Store, error: reqwest::Error) -> Fault {
    // The store's address is internal to the site.
    let error = error.without_url();
    tracing::warn!(store = store.host, %error, "a store does not answer");
    Fault::new(
        503,
        "ServiceUnavailable",
        format!(
            "the site's store cannot be reached from the node, or has broken off: {error}; try again, or tell its operator"
        ),
    )
}

/// Passes a store's answer on to a function, without the parts that are meant for the site.
async fn pass_answer(answer: Response<reqwest::Body>, method: &Method) -> Result<Response<Body>, Fault> {
    let (mut head, body) = answer.into_parts();
    let status = head.status;
    let is_elsewhere = status.is_redirection() && status != StatusCode::NOT_MODIFIED;
    if is_elsewhere || matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        let said = match method {
            &Method::HEAD => String::new(),
            _ => code_in(body).await,
        };
        tracing::warn!(%status, code = said, "a store refuses what a lease is granted");
        return Err(Fault::denied(format!(
            "the lease may do this, but the store refuses it to the site ({}{}{said}); its operator finds the same in the agent's log",
            status.as_u16(),
            if said.is_empty() { "" } else { ", " }
        )));
    }
    // Removes headers of the connection between store and agent, and headers that functions must not see.
    for name in [CONNECTION, TRANSFER_ENCODING, TRAILER, UPGRADE, LOCATION, SET_COOKIE] {
        head.headers.remove(name);
    }
    head.headers.remove("keep-alive");
    let mut passed = Response::from_parts(head, Either::Right(body));
    // A store may use another version of HTTP.
    *passed.version_mut() = http::Version::HTTP_11;
    Ok(passed)
}

/// Extracts the code from an error in S3's format. The rest may reveal the site's keys.
async fn code_in(body: reqwest::Body) -> String {
    let Ok(read) = Limited::new(body, WORDS_MAX).collect().await else {
        return String::new();
    };
    let bytes = read.to_bytes();
    let text = String::from_utf8_lossy(&bytes);
    let code = text
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    let is_word = |code: &&str| code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    code.map(|(code, _)| code)
        .filter(is_word)
        .unwrap_or_default()
        .to_owned()
}
