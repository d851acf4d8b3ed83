//! Faults of requests to the table, with what to do about them.

use super::table::{EXPIRES, PARTITION, SORT};
use crate::store::{StoreFault, error_text};
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

/// Whether the table or the account has no throughput left for the request at the moment.
pub(super) fn is_throttled<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    const CODES: [&str; 4] = [
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "Throttling",
    ];
    error.code().is_some_and(|code| CODES.contains(&code))
}

pub(super) fn fault<E>(error: &SdkError<E>, table: &str, arguments: &str) -> StoreFault
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let Some(code) = error.code() else {
        let next = match error {
            SdkError::ConstructionFailure(_) | SdkError::DispatchFailure(_) | SdkError::TimeoutError(_) => {
                "look whether it is well and can be reached from here, and whether there are credentials"
            }
            _ => "look whether it is DynamoDB",
        };
        let said = error_text(error);
        return StoreFault {
            why: format!("{said}; {next}"),
        };
    };
    let next = match code {
        "ResourceNotFoundException" => return no_table(table, arguments),
        "ValidationException" => {
            "a table for messages has the partition key `pk` and the sort key `sk`, both strings: make one, or correct its name"
        }
        "AccessDeniedException" => {
            "let this user do dynamodb:GetItem, PutItem, Query and BatchWriteItem on it, or name another in AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY"
        }
        "UnrecognizedClientException"
        | "InvalidSignatureException"
        | "IncompleteSignatureException"
        | "MissingAuthenticationTokenException"
        | "ExpiredTokenException"
        | "InvalidClientTokenId" => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where it has one, to those of a user of it"
        }
        _ => "look whether it is well",
    };
    let message = error.message().unwrap_or("no more");
    StoreFault {
        why: format!("{code}: {message}; {next}"),
    }
}

/// Fault of a missing table. Members do not create the table: few users with permission to write to a table may also
/// create one, the creation takes ten seconds, and a table with a wrong name would cost money.
fn no_table(table: &str, arguments: &str) -> StoreFault {
    let why = format!(
        "there is no such table: correct its name, or make it with `aws dynamodb create-table --table-name {table} {arguments} \
         --attribute-definitions AttributeName={PARTITION},AttributeType=S AttributeName={SORT},AttributeType=S \
         --key-schema AttributeName={PARTITION},KeyType=HASH AttributeName={SORT},KeyType=RANGE --billing-mode PAY_PER_REQUEST`, \
         and, so that what killed members leave goes by itself, `aws dynamodb update-time-to-live --table-name {table} {arguments} \
         --time-to-live-specification Enabled=true,AttributeName={EXPIRES}`"
    );
    StoreFault { why }
}
