//! Table of routes with their operations, and the router.

use super::{agents, health, info, leases, nodes, openapi, sessions, tenants, usage};
use crate::identity::ManagerOperation;
use crate::state::ManagerState;
use axum::http::Method;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Routes with their operations. A route that is not listed is refused to every caller.
pub(super) const ROUTES: &[(Method, &str, ManagerOperation)] = &[
    (Method::GET, "/healthz", ManagerOperation::ReadHealth),
    (Method::GET, "/readyz", ManagerOperation::GetInfo),
    (Method::GET, "/metrics", ManagerOperation::ReadMetrics),
    (Method::GET, "/v1/info", ManagerOperation::GetInfo),
    (Method::GET, "/v1/openapi.json", ManagerOperation::GetInfo),
    (Method::GET, "/v1/challenge", ManagerOperation::Authenticate),
    (Method::POST, "/v1/session", ManagerOperation::GetInfo),
    (Method::GET, "/v1/agents", ManagerOperation::ListAgents),
    (Method::GET, "/v1/agents/{agent}", ManagerOperation::ListAgents),
    (Method::GET, "/v1/nodes", ManagerOperation::ListNodes),
    (Method::GET, "/v1/nodes/{node}", ManagerOperation::ListNodes),
    (Method::DELETE, "/v1/nodes/{node}", ManagerOperation::RemoveNode),
    (Method::PUT, "/v1/nodes/{node}/offer", ManagerOperation::AddNode),
    (Method::POST, "/v1/nodes/{node}/drain", ManagerOperation::DrainNode),
    (Method::POST, "/v1/nodes/{node}/resume", ManagerOperation::AddNode),
    (Method::GET, "/v1/leases", ManagerOperation::ListLeases),
    (Method::GET, "/v1/leases/{lease}", ManagerOperation::ListLeases),
    (Method::DELETE, "/v1/leases/{lease}", ManagerOperation::Release),
    (Method::GET, "/v1/tenants", ManagerOperation::ListTenants),
    (Method::GET, "/v1/tenants/{tenant}", ManagerOperation::ListTenants),
    (Method::PUT, "/v1/tenants/{tenant}", ManagerOperation::ChangeTenants),
    (Method::DELETE, "/v1/tenants/{tenant}", ManagerOperation::ChangeTenants),
    (Method::GET, "/v1/usage", ManagerOperation::Bill),
];

/// Operation of a request for one of our paths. HEAD counts as GET; its response has no body.
pub(super) fn operation(method: &Method, path: &str) -> Option<ManagerOperation> {
    let method = match *method {
        Method::HEAD => &Method::GET,
        _ => method,
    };
    let row = ROUTES
        .iter()
        .find(|(known, route, _)| known == method && *route == path);
    row.map(|(_, _, operation)| *operation)
}

/// Methods of one of our paths, in the format of the `Allow` header.
pub(super) fn allowed(path: &str) -> String {
    let methods = ROUTES.iter().filter(|(_, route, _)| *route == path);
    let mut names: Vec<&str> = methods.map(|(method, ..)| method.as_str()).collect();
    if names.contains(&"GET") {
        names.push("HEAD");
    }
    names.join(", ")
}

/// Router with all routes, without the gate.
pub(super) fn router() -> OpenApiRouter<Arc<ManagerState>> {
    OpenApiRouter::with_openapi(openapi::head())
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(info::info))
        .routes(routes!(openapi::document))
        .routes(routes!(sessions::challenge))
        .routes(routes!(sessions::open))
        .routes(routes!(agents::list))
        .routes(routes!(agents::get))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::get, nodes::remove))
        .routes(routes!(nodes::offer))
        .routes(routes!(nodes::drain))
        .routes(routes!(nodes::resume))
        .routes(routes!(leases::list))
        .routes(routes!(leases::get, leases::end))
        .routes(routes!(tenants::list))
        .routes(routes!(tenants::get, tenants::put, tenants::remove))
        .routes(routes!(usage::usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_of_the_document_names_what_it_asks_for_and_the_other_way_round() {
        let document: serde_json::Value = serde_json::from_str(&super::super::openapi()).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        let mut found = Vec::new();
        for (path, item) in paths {
            for method in item.as_object().expect("an object").keys() {
                let named: Method = method.to_uppercase().parse().expect("a method");
                assert!(
                    operation(&named, path).is_some(),
                    "{named} {path} names no operation: say in rest/routes.rs which one it is"
                );
                found.push((named, path.clone()));
            }
        }
        for (method, path, _) in ROUTES {
            assert!(
                found.contains(&(method.clone(), (*path).to_owned())),
                "{method} {path} is in the table and no handler answers it"
            );
        }
    }

    #[test]
    fn unknown_routes_have_no_operation() {
        for (method, path) in [
            (Method::POST, "/v1/leases"),
            (Method::GET, "/v1/leases/"),
            (Method::GET, "/V1/LEASES"),
            (Method::TRACE, "/healthz"),
            (Method::HEAD, "/v1"),
        ] {
            assert_eq!(operation(&method, path), None, "{method} {path}");
        }
        assert_eq!(allowed("/v1/leases/{lease}"), "GET, DELETE, HEAD");
    }
}
