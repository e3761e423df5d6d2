import { once } from './once.js'

const form = document.querySelector('form')
const output = document.querySelector('output')

form.addEventListener('submit', async (event) => {
  event.preventDefault()
  output.textContent = 'Ordering …'
  output.textContent = await placeOrder({ item: form.item.value, quantity: form.quantity.valueAsNumber })
})

async function placeOrder(order) {
  try {
    const response = await once('place order', '/orders', {
      method: 'POST',
      // If it is already being made, as before a reload, wait for that.
      headers: { 'Content-Type': 'application/json', Prefer: 'wait=10' },
      body: JSON.stringify(order),
    })
    const answer = await response.json()
    if (response.ok) return `Order ${answer.id}: ${answer.quantity} × ${answer.item}`
    return `${answer.title}. ${answer.detail}`
  } catch (error) {
    if (error.name === 'StaleKeyError') return 'Whether this was ordered some time ago is not known. Look at your orders.'
    return 'No answer came. To order once, order again: it is the same order.'
  }
}
