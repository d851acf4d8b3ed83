//! Tests of images from packing to mounting, with real trees, damage, crashes and hostile images. Tests that need
//! mksquashfs or a way of mounting are skipped with a message if the host has none.

mod caches;
mod crashes;
mod damage;
mod hostile;
mod mounting;
mod neighbours;
mod packing;
mod scene;
