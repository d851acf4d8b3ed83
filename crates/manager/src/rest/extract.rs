//! Extractors of checked parameters and bodies; each error is a [`Problem`].

use super::problem::Problem;
use crate::identity::Caller;
use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use hotlease_wire::Rejection;
use serde::de::DeserializeOwned;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::time::Duration;
use tokio::time::timeout;
use utoipa::IntoParams;

/// Time limit for the body of a request.
const BODY_WITHIN: Duration = Duration::from_secs(5);

/// Parameter in the path.
pub(super) struct PathParameter<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParameter<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let named = Path::<T>::from_request_parts(parts, state).await;
        let named = named.map_err(|error| Problem::of_status(error.status(), error.body_text()))?;
        Ok(Self(named.0))
    }
}

/// Parameters of the query string.
pub(super) struct QueryParameters<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let asked = Query::<T>::from_request_parts(parts, state).await;
        let asked = asked.map_err(|error| Problem::of_status(error.status(), error.body_text()))?;
        Ok(Self(asked.0))
    }
}

/// Caller, as the gate identified it.
pub(super) struct RequestCaller(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for RequestCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Caller>().cloned();
        let unknown = || Rejection::NotPermitted {
            what: "a request whose caller was not identified".into(),
        };
        caller.map(Self).ok_or_else(|| Problem::unauthenticated(&unknown()))
    }
}

/// Header by which a caller names a change, so that a repetition of the request is not carried out again.
const TOKEN_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The caller's token for an order; empty if the request has none.
pub(super) struct TokenHeader(pub String);

impl<S: Send + Sync> FromRequestParts<S> for TokenHeader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut tokens = parts.headers.get_all(TOKEN_HEADER).iter();
        match (tokens.next().map(|token| token.to_str()), tokens.next()) {
            (None, _) => Ok(Self(String::new())),
            (Some(Ok(token)), None) if !token.is_empty() => Ok(Self(token.to_owned())),
            _ => Err(Problem::bad("the Idempotency-Key header is not one text")),
        }
    }
}

/// Body of a request, parsed as JSON, if it arrives in time.
pub(super) struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        // Requires an object like [`deserialize_object`], but with axum's own error messages.
        let sent = Json::<serde_json::Map<_, _>>::from_request(request, state);
        let sent = timeout(BODY_WITHIN, sent).await.map_err(|_| {
            let why = format!("the body did not come within {} s", BODY_WITHIN.as_secs());
            Problem::of_status(StatusCode::REQUEST_TIMEOUT, why)
        })?;
        let Json(sent) = sent.map_err(|error| Problem::of_status(error.status(), error.body_text()))?;
        let sent = serde_json::from_value(serde_json::Value::Object(sent));
        sent.map(Self).map_err(|error| Problem::bad(error.to_string()))
    }
}

/// Deserializes an object. Serde alone would also accept a list of values for a struct.
pub(super) fn deserialize_object<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<T, D::Error> {
    let object = serde_json::Map::deserialize(from)?;
    serde_json::from_value(serde_json::Value::Object(object)).map_err(D::Error::custom)
}

/// Deserializes an optional number. A number beyond OpenAPI's int64 is refused: the store could not hold it.
pub(super) fn deserialize_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let number = Option::<u64>::deserialize(from)?;
    match number {
        Some(number) if i64::try_from(number).is_err() => {
            Err(D::Error::custom(format!("{number} is more than {}", i64::MAX)))
        }
        number => Ok(number),
    }
}

/// Selects a page of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// Limit of rows (default: 1000).
    #[param(minimum = 1, maximum = 10_000)]
    pub limit: Option<u32>,
    /// Show only rows whose id is greater than this.
    #[param(max_length = 64)]
    pub after: Option<String>,
}

/// Page of a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    limit: usize,
}

/// Default number of rows of a page.
pub(super) const PAGE_DEFAULT: u32 = 1_000;
/// Longest id, characters.
const AFTER_MAX: usize = 64;
/// Limit of rows of a page.
pub(super) const PAGE_MAX: u32 = 10_000;

impl Page {
    /// Checks the limit and the id after which a page begins.
    pub(super) fn of(limit: Option<u32>, after: Option<&str>) -> Result<Self, Problem> {
        if after.is_some_and(|after| after.chars().count() > AFTER_MAX) {
            return Err(Problem::bad(format!("after has more than {AFTER_MAX} letters")));
        }
        let limit = limit.unwrap_or(PAGE_DEFAULT);
        if !(1..=PAGE_MAX).contains(&limit) {
            return Err(Problem::bad(format!(
                "limit is {limit}; it must be from 1 to {PAGE_MAX}"
            )));
        }
        Ok(Self { limit: limit as usize })
    }

    /// Cuts the page out of all rows, which are sorted by id; returns it with the id after which the next page
    /// begins.
    pub(super) fn cut<T>(self, rows: Vec<T>, after: Option<&str>, id: impl Fn(&T) -> &str) -> (Vec<T>, Option<String>) {
        let mut rows: Vec<T> = match after {
            Some(after) => rows.into_iter().filter(|row| id(row) > after).collect(),
            None => rows,
        };
        let more = rows.len() > self.limit;
        rows.truncate(self.limit);
        let next = rows.last().filter(|_| more).map(|row| id(row).to_owned());
        (rows, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_show_every_row_once() {
        let all: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        let page = Page::of(Some(3), None).expect("a page");
        let (mut seen, mut after) = (Vec::new(), None::<String>);
        loop {
            let (rows, next) = page.cut(all.clone(), after.as_deref(), |row| row);
            seen.extend(rows);
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, all);
        assert!(Page::of(Some(0), None).is_err() && Page::of(Some(PAGE_MAX + 1), None).is_err());
    }
}
