//! Sending an environment to another agent.

use crate::data::images::Images;
use hotlease_image::{ImageError, ImageId, ImageReader};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{ImagePiece, ReadImageRequest};
use std::io::Read;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Largest number of environments that are sent at a time: twice the number that the manager's tree assigns to an
/// agent, because more agents may ask while the tree changes.
const SENT_MAX: usize = 4;
/// Bytes of a piece: a few windows of HTTP/2.
const PIECE_BYTES: usize = 256 * 1024;
/// Largest number of pieces that wait to be sent.
const PIECES_MAX: usize = 4;

/// Limits how many environments are sent at a time.
pub(crate) struct ImageSender(Arc<Semaphore>);

impl Default for ImageSender {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SENT_MAX)))
    }
}

/// Pieces of an image: a gRPC message each.
pub(crate) type ImagePieces = ReceiverStream<Result<ImagePiece, Status>>;

impl ImageSender {
    /// Sends an environment that this node has, or is fetching.
    pub fn send(&self, images: &Arc<Images>, asked: &ReadImageRequest) -> Result<ImagePieces, Rejection> {
        let behind = asked.behind;
        let id: ImageId = asked
            .image
            .parse()
            .map_err(|error: hotlease_image::ImageIdError| Rejection::BadRequest {
                what: error.to_string(),
            })?;
        let place = Arc::clone(&self.0)
            .try_acquire_owned()
            .map_err(|_| Rejection::TooMany {
                what: "environments that this node sends at a time".into(),
                limit: SENT_MAX as u64,
            })?;
        let (sender, receiver) = mpsc::channel(PIECES_MAX);
        let images = Arc::clone(images);
        let started = std::thread::Builder::new().name("send-image".into()).spawn(move || {
            let sent = send(images.read(&id), (&id, behind), &sender);
            if let Err(refusal) = sent {
                // The asking agent may be gone.
                let _ = sender.blocking_send(Err(refusal.into()));
            }
            drop(place);
        });
        started.map_err(|error| Rejection::Unavailable {
            what: format!("a thread to send environment {id}: {error}"),
        })?;
        Ok(ReceiverStream::new(receiver))
    }
}

/// Sends pieces until the end of the image, or until the receiver is gone.
fn send(
    found: Result<Option<ImageReader>, ImageError>,
    (id, behind): (&ImageId, u64),
    sender: &mpsc::Sender<Result<ImagePiece, Status>>,
) -> Result<(), Rejection> {
    let failed = |why: String| Rejection::NoEnvironment {
        environment: id.to_string(),
        why,
    };
    let found = found.map_err(|error| failed(error.to_string()))?;
    let reader = found.ok_or_else(|| failed(format!("{id} is not on this node")))?;
    let reader = reader.from_offset(behind);
    let mut reader = reader.ok_or_else(|| failed(format!("{id} is shorter on this node")))?;
    let first = ImagePiece {
        total_bytes: reader.length(),
        content: Vec::new(),
    };
    let mut is_heard = sender.blocking_send(Ok(first)).is_ok();
    while is_heard {
        let mut content = vec![0; PIECE_BYTES];
        let read = reader.read(&mut content);
        let read = read.map_err(|error| failed(format!("reading {id} on this node: {error}")))?;
        if read == 0 {
            break;
        }
        content.truncate(read);
        let piece = ImagePiece {
            total_bytes: 0,
            content,
        };
        is_heard = sender.blocking_send(Ok(piece)).is_ok();
    }
    Ok(())
}
