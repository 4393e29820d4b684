// A picture that somebody chose, in the size that an input takes; shown as the model will see it.

const LARGEST = 1024; // of a side that the model leaves open

export async function pixels(file, { width, height }, canvas) {
    let image;
    try {
        image = await createImageBitmap(file);
    } catch {
        throw new Error(`${file.name} is no picture that this browser reads`);
    }
    const scale = Math.min(1, LARGEST / Math.max(image.width, image.height));
    canvas.width = width || Math.round(image.width * scale);
    canvas.height = height || Math.round(image.height * scale);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    image.close();
    return context.getImageData(0, 0, canvas.width, canvas.height);
}
