import { forget, once } from './once.js'

const form = document.querySelector('form')
const output = document.querySelector('output')
const anew = document.querySelector('#anew')

form.addEventListener('submit', async (event) => {
  event.preventDefault()
  anew.hidden = true
  output.textContent = 'Ordering …'
  output.textContent = await placeOrder()
})

anew.addEventListener('click', () => {
  forget(...action())
  form.requestSubmit()
})

const action = () => ['place order', '/orders', {
  method: 'POST',
  // If it is already being made, as before a reload, wait for that.
  headers: { 'Content-Type': 'application/json', Prefer: 'wait=10' },
  body: JSON.stringify({ item: form.item.value, quantity: form.quantity.valueAsNumber }),
}]

async function placeOrder() {
  try {
    const response = await once(...action())
    const answer = await response.json()
    if (response.ok) return `Order ${answer.id}: ${answer.quantity} × ${answer.item}`
    return `${answer.title}. ${answer.detail}`
  } catch (error) {
    if (error.name === 'StorageError') return 'This browser keeps nothing for this page. Nothing was ordered.'
    if (error.name !== 'StaleKeyError') return 'No answer came. To order once, order again: it is the same order.'
    anew.hidden = false
    return 'Whether this was ordered some time ago is not known. Look at your orders first.'
  }
}
