// An image file in the size of a model's input, drawn as the model gets it.

const LARGEST = 1024; // of a side that the model leaves open

export async function pixels(file, { width, height }, canvas) {
    let image;
    try {
        image = await createImageBitmap(file);
    } catch {
        throw new Error(`${file.name} is not an image that this browser can read`);
    }
    const scale = Math.min(1, LARGEST / Math.max(image.width, image.height));
    canvas.width = width || Math.round(image.width * scale);
    canvas.height = height || Math.round(image.height * scale);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    image.close();
    return context.getImageData(0, 0, canvas.width, canvas.height);
}
