//! OpenAPI 3.1 document of the interface, generated from the code.

use super::problem::{self, Problem};
use super::routes;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use std::sync::LazyLock;
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi as Document, Ref, RefOr, Response, ResponseBuilder};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "hotlease",
        description = "The REST interface of a hotlease manager, for operators and batch systems.\n\n\
            Served on `rest.sock` in the runtime directory, where the kernel identifies the caller, and with \
            `hotlease manager --rest ADDR:PORT` over TLS 1.3, where a client certificate of the site or a bearer \
            credential does. Errors are `application/problem+json` (RFC 9457).",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact(name = "hotlease", url = "https://github.com/hotlease/hotlease"),
    ),
    components(schemas(Problem)),
    security(("bearer" = [])),
    tags(
        (name = "manager", description = "The manager itself"),
        (name = "nodes", description = "Nodes and their agents"),
        (name = "leases", description = "Leases"),
        (name = "tenants", description = "Tenants and their quotas"),
        (name = "usage", description = "Usage and its cost"),
    ),
)]
struct DocumentHead;

/// The document without the routes.
pub(super) fn head() -> Document {
    let mut head = DocumentHead::openapi();
    let bearer = Http::builder()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "A key or a token. Not needed on `rest.sock`, nor with a client certificate.",
        ))
        .build();
    let components = head.components.get_or_insert_default();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    head
}

fn problem(description: &str) -> Response {
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("Problem")))
        .build();
    ResponseBuilder::new()
        .description(description)
        .content(problem::CONTENT, content)
        .build()
}

/// Adds the errors that every route may return to its own responses.
pub(super) fn add_problems(mut document: Document) -> Document {
    for item in document.paths.paths.values_mut() {
        let operations = [
            &mut item.get,
            &mut item.post,
            &mut item.put,
            &mut item.patch,
            &mut item.delete,
        ];
        for operation in operations.into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            let mut add = |status: &str, description| {
                let problem = RefOr::T(problem(description));
                responses.entry(status.to_owned()).or_insert(problem);
            };
            add("default", "The request was not carried out");
            if operation.security.is_none() {
                add("401", "The caller is not known");
                add("403", "The caller may not do this");
            }
        }
    }
    document
}

/// Text of the document, as it is served and kept in `docs/openapi.json`.
pub fn openapi() -> String {
    let (_, document) = routes::router().split_for_parts();
    let mut text = add_problems(document).to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// Returns this document.
#[utoipa::path(get, path = "/v1/openapi.json", operation_id = "get_openapi", tag = "manager",
    responses((status = 200, description = "The document", body = Object)))]
pub(super) async fn document() -> impl IntoResponse {
    static TEXT: LazyLock<String> = LazyLock::new(openapi);
    ([(CONTENT_TYPE, "application/json")], TEXT.as_str())
}
